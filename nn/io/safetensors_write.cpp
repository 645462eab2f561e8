#include <set>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "nn/io/atomic_file.h"
#include "nn/io/byte_count.h"
#include "nn/io/safetensors.h"
#include "nn/io/safetensors_checksum.h"
#include "nn/io/safetensors_dtype.h"

namespace gradus::nn {

namespace {

using namespace safetensors;

constexpr std::string_view kOp = "write_safetensors";

// A JSON string, quotes included.
std::string json_text(std::string_view text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    fail(ErrorCode::invalid_argument, kOp, "names and metadata must be UTF-8");
  }
}

void check_tensors(std::span<const SafeTensorView> tensors) {
  std::set<std::string_view> names;
  for (const SafeTensorView& tensor : tensors) {
    const std::string name = json_text(tensor.name);
    check(tensor.name != kMetadataKey, kOp, "a tensor must not be named ", name);
    check(names.insert(tensor.name).second, kOp, "two tensors are named ", name);
    const auto bytes = byte_count(tensor.shape, size_of(tensor.dtype));
    check(bytes.has_value(), kOp, "tensor ", name, ": the size of ", tensor.dtype, tensor.shape,
          " does not fit 63 bits");
    check(*bytes == std::ssize(tensor.bytes), kOp, "tensor ", name, ": ", tensor.dtype,
          tensor.shape, " has ", *bytes, " bytes, got ", tensor.bytes.size());
  }
}

std::vector<const SafeTensorView*> in_file_order(std::span<const SafeTensorView> tensors) {
  std::vector<const SafeTensorView*> order;
  for (const SafeTensorView& tensor : tensors) order.push_back(&tensor);
  std::ranges::sort(order, [](const SafeTensorView* a, const SafeTensorView* b) {
    const NamedDType *a_dtype = find_dtype(a->dtype), *b_dtype = find_dtype(b->dtype);
    return a_dtype != b_dtype ? a_dtype < b_dtype : a->name < b->name;
  });
  return order;
}

// The header, padded so that the data begins at a multiple of 8. Numbers are joined by concat(),
// which no locale can touch.
std::string header_text(const std::vector<const SafeTensorView*>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  if (!metadata.empty()) {
    text += concat("\"", kMetadataKey, "\":{");
    for (const char* comma = ""; const auto& [key, value] : metadata) {
      text += concat(comma, json_text(key), ":", json_text(value));
      comma = ",";
    }
    text += "}";
  }
  int64_t begin = 0;
  for (const SafeTensorView* tensor : tensors) {
    const int64_t end = begin + std::ssize(tensor->bytes);
    text += concat(text.size() > 1 ? "," : "", json_text(tensor->name), ":{\"dtype\":\"",
                   find_dtype(tensor->dtype)->name, "\",\"shape\":", tensor->shape,
                   ",\"data_offsets\":[", begin, ",", end, "]}");
    begin = end;
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  check(std::ssize(text) <= kMaxHeaderBytes, kOp, "the header must have at most ", kMaxHeaderBytes,
        " bytes, got ", text.size());
  return text;
}

std::string checked_header(const std::vector<const SafeTensorView*>& tensors,
                           std::map<std::string, std::string> metadata) {
  metadata[std::string(kChecksumKey)] = kNoDigits;
  std::string header = header_text(tensors, metadata);
  Checksum checksum;
  checksum.add_header(header);
  for (const SafeTensorView* tensor : tensors) checksum.add(tensor->bytes);
  return header.replace(find_digits(header), kNoDigits.size(), checksum.digits());
}

}  // namespace

void write_safetensors(const std::string& path, std::span<const SafeTensorView> tensors,
                       const std::map<std::string, std::string>& metadata, bool checksum) {
  check_tensors(tensors);
  const auto order = in_file_order(tensors);
  std::map<std::string, std::string> own = metadata;
  own.erase(std::string(kChecksumKey));  // of the file that they were read from
  const std::string header = checksum ? checked_header(order, own) : header_text(order, own);
  const uint64_t length = header.size();
  static_assert(sizeof length == kLengthBytes);
  AtomicFile file(std::string(kOp), path);
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(header);
  for (const SafeTensorView* tensor : order) file.write(tensor->bytes);
  file.commit();
}

}  // namespace gradus::nn
