#include <set>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "nn/io/byte_count.h"
#include "nn/io/input_file.h"
#include "nn/io/safetensors.h"
#include "nn/io/safetensors_checksum.h"
#include "nn/io/safetensors_dtype.h"

namespace gradus::nn {

namespace {

using namespace safetensors;
using Json = nlohmann::json;

constexpr std::string_view kOp = "read_safetensors";
constexpr int64_t kMinHeaderBytes = 2;  // {}
constexpr int kMaxDepth = 3;            // header, entry, shape

// Text for an error: JSON, with anything that is not UTF-8 replaced.
std::string shown(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string read_header(InputFile& file) {
  const int64_t size = *file.remaining();
  file.require(size >= kLengthBytes + kMinHeaderBytes, "a safetensors file has at least ",
               kLengthBytes + kMinHeaderBytes, " bytes, this one has ", size);
  uint64_t length = 0;
  file.read_exactly(std::span(&length, 1));
  const uint64_t most = std::min(kMaxHeaderBytes, size - kLengthBytes);
  file.require(length >= kMinHeaderBytes && length <= most, "header length must be ",
               kMinHeaderBytes, " to ", most, ", got ", length);
  std::string text(length, '\0');
  file.read_exactly(std::span(text));
  return text;
}

// The JSON parser would take a NUL for the end of the text, and leading or trailing white space.
void check_frame(const InputFile& file, const std::string& text) {
  file.require(text.find('\0') == std::string::npos,
               "the header holds a NUL byte; it must be padded with spaces (0x20)");
  file.require(text.front() == '{', "the header must begin with '{'");
  file.require(text[text.find_last_not_of(' ')] == '}', "the header must end with '}' and spaces");
}

Json parse_header(const InputFile& file, const std::string& text) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto inspect = [&](int depth, Json::parse_event_t event, Json& value) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      file.require(depth < kMaxDepth, "the header is nested deeper than ", kMaxDepth, " levels");
    }
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key) {
      file.require(keys.back().insert(value.get<std::string>()).second, "the header has the key ",
                   shown(value), " twice");
    }
    return true;
  };
  try {
    return Json::parse(text, inspect);
  } catch (const Json::exception& error) {
    file.refuse("the header is not valid JSON: ", error.what());
  }
}

std::map<std::string, std::string> parse_metadata(const InputFile& file, const Json& value) {
  file.require(value.is_object(), kMetadataKey, " must be an object of strings");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    file.require(text.is_string(), kMetadataKey, ": the value of ", shown(key),
                 " must be a string, got ", shown(text));
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

struct Entry {
  SafeTensor tensor;
  uint64_t begin = 0, end = 0;
};

class EntryParser {
 public:
  EntryParser(const InputFile& file, const std::string& name, uint64_t data_bytes)
      : file_(file), name_(name), data_bytes_(data_bytes) {}

  Entry parse(const Json& json) const {
    require(json.is_object() && json.size() == 3 && json.contains("dtype") &&
                json.contains("shape") && json.contains("data_offsets"),
            "expected an object of dtype, shape and data_offsets, got ", shown(json));
    Entry entry;
    entry.tensor.name = name_;
    entry.tensor.dtype = parse_dtype(json["dtype"]);
    entry.tensor.shape = parse_shape(json["shape"]);
    std::tie(entry.begin, entry.end) = parse_offsets(json["data_offsets"]);
    check_size(entry);
    return entry;
  }

 private:
  template <class... Parts>
  void require(bool condition, const Parts&... parts) const {
    if (!condition) file_.refuse("tensor ", shown(name_), ": ", parts...);
  }

  DType parse_dtype(const Json& json) const {
    const auto dtype = json.is_string()
                           ? find_dtype(std::string_view(json.get_ref<const std::string&>()))
                           : std::nullopt;
    require(dtype.has_value(), "unknown dtype ", shown(json),
            ", expected F64, F32, F16, BF16, U8, I32 or I64");
    return *dtype;
  }

  Shape parse_shape(const Json& json) const {
    require(json.is_array(), "shape must be an array, got ", shown(json));
    require(json.size() <= kMaxRank, "at most ", kMaxRank, " dimensions can be read, got ",
            json.size());
    Shape shape;
    for (const Json& extent : json) {
      require(extent.is_number_unsigned() && extent.get<uint64_t>() <= INT64_MAX,
              "extents must be integers from 0 to 2^63 - 1, got ", shown(extent));
      shape.append(extent.get<int64_t>());
    }
    return shape;
  }

  std::pair<uint64_t, uint64_t> parse_offsets(const Json& json) const {
    require(json.is_array() && json.size() == 2 && json[0].is_number_unsigned() &&
                json[1].is_number_unsigned(),
            "data_offsets must be two non-negative integers, got ", shown(json));
    return {json[0].get<uint64_t>(), json[1].get<uint64_t>()};
  }

  void check_size(const Entry& entry) const {
    const auto& [tensor, begin, end] = entry;
    const auto bytes = byte_count(tensor.shape, size_of(tensor.dtype));
    require(bytes.has_value(), "the size of ", tensor.dtype, tensor.shape, " does not fit 63 bits");
    require(begin <= end, "data_offsets [", begin, ",", end, "] run backwards");
    require(end <= data_bytes_, "data_offsets [", begin, ",", end, "] pass the ", data_bytes_,
            " bytes of data");
    require(end - begin == static_cast<uint64_t>(*bytes), tensor.dtype, tensor.shape, " has ",
            *bytes, " bytes, but data_offsets [", begin, ",", end, "] span ", end - begin);
  }

  const InputFile& file_;
  const std::string& name_;
  uint64_t data_bytes_;
};

// Sorts the entries by their place and checks that they cover the data exactly once.
void check_coverage(const InputFile& file, std::vector<Entry>& entries, uint64_t data_bytes) {
  std::ranges::sort(entries, {}, [](const Entry& entry) {
    return std::tuple<uint64_t, uint64_t, std::string_view>(entry.begin, entry.end,
                                                            entry.tensor.name);
  });
  uint64_t covered = 0;
  for (const Entry& entry : entries) {
    file.require(entry.begin >= covered, "tensor ", shown(entry.tensor.name),
                 " overlaps the one before it: begins at ", entry.begin, ", expected ", covered);
    file.require(entry.begin == covered, "a hole precedes tensor ", shown(entry.tensor.name),
                 ": begins at ", entry.begin, ", expected ", covered);
    covered = entry.end;
  }
  file.require(covered == data_bytes, "the tensors have ", covered, " bytes of data, the file has ",
               data_bytes);
}

}  // namespace

const SafeTensor* SafeTensors::find(std::string_view name) const {
  const auto found = std::ranges::find(tensors, name, &SafeTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

SafeTensors read_safetensors(const std::string& path) {
  InputFile file(std::string(kOp), path);
  const std::string text = read_header(file);
  check_frame(file, text);
  const uint64_t data_bytes = *file.remaining();
  SafeTensors result;
  std::vector<Entry> entries;
  const Json header = parse_header(file, text);
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadataKey) {
      result.metadata = parse_metadata(file, value);
    } else {
      entries.push_back(EntryParser(file, name, data_bytes).parse(value));
    }
  }
  check_coverage(file, entries, data_bytes);
  Checksum checksum;
  checksum.add_header(text);
  for (Entry& entry : entries) {
    auto& bytes = entry.tensor.bytes;
    bytes.resize(entry.end - entry.begin);
    file.read_exactly(std::span(bytes));
    checksum.add(bytes);
    result.tensors.push_back(std::move(entry.tensor));
  }
  if (const auto noted = result.metadata.find(std::string(kChecksumKey));
      noted != result.metadata.end()) {
    file.require(noted->second == checksum.digits(), "the file is damaged: its checksum is ",
                 checksum.digits(), ", and ", shown(noted->second), " was written");
  }
  return result;
}

}  // namespace gradus::nn
