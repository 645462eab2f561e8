#include "nn/io/npy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <optional>

#include "core/error.h"
#include "nn/io/atomic_file.h"
#include "nn/io/byte_count.h"
#include "nn/io/input_file.h"
#include "nn/io/npy_bytes.h"

namespace gradus::nn {

namespace {

static_assert(std::endian::native == std::endian::little, "the descr codes are little-endian");

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr int64_t kAlignment = 64;
constexpr uint32_t kMaxHeaderBytes = 65535;

struct Descr {
  DType dtype;
  std::string_view code;
};
constexpr std::array<Descr, 7> kDescrs{{{DType::f64, "<f8"},
                                        {DType::f32, "<f4"},
                                        {DType::f16, "<f2"},
                                        {DType::u8, "|u1"},
                                        {DType::u8, "|b1"},  // written as |u1
                                        {DType::i32, "<i4"},
                                        {DType::i64, "<i8"}}};

// The header's dictionary; from left to right, nothing skipped but spaces.
class HeaderParser {
 public:
  HeaderParser(const NpySource& source, std::string_view text) : source_(source), text_(text) {}

  bool is_fortran() const { return *fortran_; }

  NpyArray parse() {
    expect('{');
    while (!accept('}')) {
      parse_item();
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_spaces();
    source_.require(text_.substr(at_) == "\n", "the npy header must end with spaces and a newline");
    source_.require(dtype_ && fortran_ && shape_,
                    "the npy header needs the keys descr, fortran_order and shape");
    return {.dtype = *dtype_, .shape = *shape_, .bytes = {}};
  }

 private:
  void parse_item() {
    const std::string_view key = parse_string();
    expect(':');
    skip_spaces();
    if (key == "descr" && !dtype_) {
      dtype_ = parse_descr();
    } else if (key == "fortran_order" && !fortran_) {
      fortran_ = parse_order();
    } else if (key == "shape" && !shape_) {
      shape_ = parse_shape();
    } else {
      source_.refuse("the npy header has an unknown or repeated key '", key, "'");
    }
  }

  DType parse_descr() {
    source_.require(at_char() != '[', "structured npy arrays are not supported");
    const std::string_view code = parse_string();
    const auto found = std::ranges::find(kDescrs, code, &Descr::code);
    source_.require(found != kDescrs.end(),
                    "npy descr must be '<f8', '<f4', '<f2', '|u1', '|b1', '<i4' or '<i8', got '",
                    code, "'");
    return found->dtype;
  }

  bool parse_order() {
    if (accept_word("True")) return true;
    source_.require(accept_word("False"), "fortran_order must be True or False", place());
    return false;
  }

  Shape parse_shape() {
    expect('(');
    Shape shape;
    bool comma = true;
    while (!accept(')')) {
      source_.require(comma, "the npy shape lacks a comma", place());
      source_.require(shape.rank() < kMaxRank, "npy arrays of at most ", kMaxRank,
                      " dimensions can be read");
      shape.append(parse_extent());
      comma = accept(',');
      source_.require(comma || shape.rank() != 1, "a npy shape of one extent is written (",
                      shape[0], ",), with a comma");
    }
    return shape;
  }

  int64_t parse_extent() {
    skip_spaces();
    const char* begin = text_.data() + at_;
    const char* end = text_.data() + text_.size();
    int64_t value = 0;
    const auto result = std::from_chars(begin, end, value);
    const bool leading_zero = begin != end && *begin == '0' && result.ptr - begin > 1;
    source_.require(result.ec == std::errc() && *begin != '-' && !leading_zero,
                    "npy extents must be integers from 0 to 2^63 - 1", place());
    at_ += result.ptr - begin;
    return value;
  }

  std::string_view parse_string() {
    skip_spaces();
    const char quote = at_char();
    source_.require(quote == '\'' || quote == '"', "the npy header lacks a quoted string", place());
    const size_t end = text_.find(quote, at_ + 1);
    source_.require(end != std::string_view::npos, "a string in the npy header does not end");
    const std::string_view value = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return value;
  }

  void skip_spaces() {
    while (at_char() == ' ') ++at_;
  }

  bool accept(char wanted) {
    skip_spaces();
    if (at_char() != wanted) return false;
    ++at_;
    return true;
  }

  bool accept_word(std::string_view wanted) {
    if (text_.substr(at_, wanted.size()) != wanted) return false;
    at_ += wanted.size();
    return true;
  }

  void expect(char wanted) {
    source_.require(accept(wanted), "the npy header lacks '", std::string(1, wanted), "'", place());
  }

  char at_char() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  std::string place() const { return concat(" at byte ", at_, " of the header"); }

  const NpySource& source_;
  std::string_view text_;
  size_t at_ = 0;
  std::optional<DType> dtype_;
  std::optional<bool> fortran_;
  std::optional<Shape> shape_;
};

// The bytes of a source, from front to back.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : rest_(bytes) {}

  int64_t remaining() const { return std::ssize(rest_); }
  // Up to `most` bytes.
  std::string_view take(size_t most) {
    const std::span<const std::byte> taken = rest_.first(std::min(most, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }
  // The rest.
  std::span<const std::byte> rest() const { return rest_; }

 private:
  std::span<const std::byte> rest_;
};

// A little-endian number of `bytes` bytes.
uint32_t read_number(const NpySource& source, Cursor& cursor, size_t bytes) {
  const std::string_view raw = cursor.take(bytes);
  source.require(raw.size() == bytes, "truncated npy header");
  uint32_t number = 0;
  for (size_t i = bytes; i-- > 0;) number = number << 8 | static_cast<uint8_t>(raw[i]);
  return number;
}

std::string_view read_header(const NpySource& source, Cursor& cursor) {
  source.require(cursor.take(kMagic.size()) == kMagic,
                 "is not a npy file: must begin with \\x93NUMPY");
  const uint32_t major = read_number(source, cursor, 1);
  const uint32_t minor = read_number(source, cursor, 1);
  source.require(major >= 1 && major <= 3 && minor == 0,
                 "npy version must be 1.0, 2.0 or 3.0, got ", major, ".", minor);
  const uint32_t length = read_number(source, cursor, major == 1 ? 2 : 4);
  source.require(length <= kMaxHeaderBytes, "the npy header must have at most ", kMaxHeaderBytes,
                 " bytes, got ", length);
  const std::string_view text = cursor.take(length);
  source.require(text.size() == length, "truncated npy header: needs ", length, " bytes, has ",
                 text.size());
  return text;
}

// The elements of a column-major array (the first index runs fastest) in row-major order.
std::vector<std::byte> row_major(const Shape& shape, size_t width,
                                 std::span<const std::byte> columns) {
  std::vector<std::byte> rows(columns.size());
  const size_t count = columns.size() / width;
  for (size_t i = 0; i < count; ++i) {  // index of the element in row-major order
    size_t rest = i, offset = 0, below = static_cast<size_t>(shape.numel());
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      const size_t extent = static_cast<size_t>(shape[axis]);
      below /= extent;
      offset += rest % extent * below;
      rest /= extent;
    }
    std::ranges::copy(columns.subspan(offset * width, width),
                      rows.begin() + static_cast<std::ptrdiff_t>(i * width));
  }
  return rows;
}

// "(184,)", "(2, 3)", "()": Python's spelling of a tuple.
std::string tuple_text(const Shape& shape) {
  std::string text = "(";
  for (int i = 0; i < shape.rank(); ++i) text += concat(i ? ", " : "", shape[i]);
  return text + (shape.rank() == 1 ? ",)" : ")");
}

int64_t payload_bytes(const NpySource& source, const NpyArray& array) {
  const auto bytes = byte_count(array.shape, size_of(array.dtype));
  source.require(bytes.has_value(), "the size of ", array.dtype, array.shape,
                 " does not fit 63 bits");
  return *bytes;
}

}  // namespace

int64_t npy_size(const NpySource& source, std::span<const std::byte> start) {
  Cursor cursor(start);
  const NpyArray array = HeaderParser(source, read_header(source, cursor)).parse();
  const int64_t payload = payload_bytes(source, array);
  const int64_t header = std::ssize(start) - cursor.remaining();
  return payload > INT64_MAX - header ? INT64_MAX : header + payload;
}

NpyArray parse_npy(const NpySource& source, std::span<const std::byte> bytes) {
  Cursor cursor(bytes);
  HeaderParser parser(source, read_header(source, cursor));
  NpyArray array = parser.parse();
  const int64_t needed = payload_bytes(source, array);
  source.require(cursor.remaining() == needed,
                 cursor.remaining() < needed ? "truncated: " : "oversized: ", array.dtype,
                 array.shape, " needs ", needed, " bytes of data, has ", cursor.remaining());
  const std::span<const std::byte> data = cursor.rest();
  array.bytes = parser.is_fortran() && array.shape.rank() > 1
                    ? row_major(array.shape, static_cast<size_t>(size_of(array.dtype)), data)
                    : std::vector(data.begin(), data.end());
  return array;
}

NpyArray read_npy(const std::string& path) {
  InputFile file("read_npy", path);
  const std::vector<std::byte> bytes = file.read_up_to<std::byte>(*file.remaining());
  return parse_npy({"read_npy", path}, bytes);
}

std::string npy_header(std::string_view op, DType dtype, const Shape& shape, int64_t bytes) {
  const auto descr = std::ranges::find(kDescrs, dtype, &Descr::dtype);
  if (descr == kDescrs.end()) fail(ErrorCode::unsupported, op, "npy has no dtype for ", dtype);
  const auto needed = byte_count(shape, size_of(dtype));
  check(needed.has_value(), op, "the size of ", dtype, shape, " does not fit 63 bits");
  check(*needed == bytes, op, dtype, shape, " has ", *needed, " bytes, got ", bytes);
  std::string header = concat("{'descr': '", descr->code,
                              "', 'fortran_order': False, 'shape': ", tuple_text(shape), ", }");
  const int64_t prefix = std::ssize(kMagic) + 4;  // version and length have two bytes each
  const int64_t total =
      (prefix + std::ssize(header) + 1 + kAlignment - 1) / kAlignment * kAlignment;
  header.resize(total - prefix - 1, ' ');
  header += '\n';
  const std::array<char, 4> frame{1, 0, static_cast<char>(header.size() & 0xFF),
                                  static_cast<char>(header.size() >> 8)};
  return concat(kMagic, std::string_view(frame.data(), frame.size()), header);
}

void write_npy(const std::string& path, DType dtype, const Shape& shape,
               std::span<const std::byte> bytes) {
  const std::string header = npy_header("write_npy", dtype, shape, std::ssize(bytes));
  AtomicFile file("write_npy", path);
  file.write(header);
  file.write(bytes);
  file.commit();
}

}  // namespace gradus::nn
