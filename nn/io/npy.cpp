#include "nn/io/npy.h"

#include <array>
#include <bit>
#include <charconv>
#include <optional>

#include "core/error.h"
#include "nn/io/atomic_file.h"
#include "nn/io/byte_count.h"
#include "nn/io/input_file.h"

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
constexpr std::array<Descr, 6> kDescrs{{{DType::f64, "<f8"},
                                        {DType::f32, "<f4"},
                                        {DType::f16, "<f2"},
                                        {DType::u8, "|u1"},
                                        {DType::i32, "<i4"},
                                        {DType::i64, "<i8"}}};

// The header's dictionary; from left to right, nothing skipped but spaces.
class HeaderParser {
 public:
  HeaderParser(const InputFile& file, std::string_view text) : file_(file), text_(text) {}

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
    file_.require(text_.substr(at_) == "\n", "the npy header must end with spaces and a newline");
    file_.require(dtype_ && row_major_ && shape_,
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
    } else if (key == "fortran_order" && !row_major_) {
      row_major_ = parse_order();
    } else if (key == "shape" && !shape_) {
      shape_ = parse_shape();
    } else {
      file_.refuse("the npy header has an unknown or repeated key '", key, "'");
    }
  }

  DType parse_descr() {
    file_.require(at_char() != '[', "structured npy arrays are not supported");
    const std::string_view code = parse_string();
    const auto found = std::ranges::find(kDescrs, code, &Descr::code);
    file_.require(found != kDescrs.end(), "npy descr must be '<f8', '<f4', '<f2', '|u1', '<i4' or ",
                  "'<i8', got '", code, "'");
    return found->dtype;
  }

  bool parse_order() {
    file_.require(!accept_word("True"), "fortran_order is True; only row-major npy arrays can be ",
                  "read");
    file_.require(accept_word("False"), "fortran_order must be True or False", place());
    return true;
  }

  Shape parse_shape() {
    expect('(');
    Shape shape;
    bool comma = true;
    while (!accept(')')) {
      file_.require(comma, "the npy shape lacks a comma", place());
      file_.require(shape.rank() < kMaxRank, "npy arrays of at most ", kMaxRank,
                    " dimensions can be read");
      shape.append(parse_extent());
      comma = accept(',');
      file_.require(comma || shape.rank() != 1, "a npy shape of one extent is written (", shape[0],
                    ",), with a comma");
    }
    return shape;
  }

  int64_t parse_extent() {
    skip_spaces();
    const char* begin = text_.data() + at_;
    const char* end = text_.data() + text_.size();
    int64_t value = 0;
    const auto result = std::from_chars(begin, end, value);
    const bool leading_zero = *begin == '0' && result.ptr - begin > 1;
    file_.require(result.ec == std::errc() && *begin != '-' && !leading_zero,
                  "npy extents must be integers from 0 to 2^63 - 1", place());
    at_ += result.ptr - begin;
    return value;
  }

  std::string_view parse_string() {
    skip_spaces();
    const char quote = at_char();
    file_.require(quote == '\'' || quote == '"', "the npy header lacks a quoted string", place());
    const size_t end = text_.find(quote, at_ + 1);
    file_.require(end != std::string_view::npos, "a string in the npy header does not end");
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
    file_.require(accept(wanted), "the npy header lacks '", std::string(1, wanted), "'", place());
  }

  char at_char() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  std::string place() const { return concat(" at byte ", at_, " of the header"); }

  const InputFile& file_;
  std::string_view text_;
  size_t at_ = 0;
  std::optional<DType> dtype_;
  std::optional<bool> row_major_;
  std::optional<Shape> shape_;
};

// A little-endian number of `bytes` bytes.
uint32_t read_number(InputFile& file, size_t bytes) {
  std::array<uint8_t, 4> raw{};
  file.require(file.read(std::span(raw).first(bytes)) == bytes, "truncated npy header");
  return std::bit_cast<uint32_t>(raw);
}

std::string read_header(InputFile& file) {
  std::string magic(kMagic.size(), '\0');
  file.require(file.read(std::span(magic)) == kMagic.size() && magic == kMagic,
               "is not a npy file: must begin with \\x93NUMPY");
  const uint32_t major = read_number(file, 1);
  const uint32_t minor = read_number(file, 1);
  file.require(major >= 1 && major <= 3 && minor == 0, "npy version must be 1.0, 2.0 or 3.0, got ",
               major, ".", minor);
  const uint32_t length = read_number(file, major == 1 ? 2 : 4);
  file.require(length <= kMaxHeaderBytes, "the npy header must have at most ", kMaxHeaderBytes,
               " bytes, got ", length);
  std::string text(length, '\0');
  const size_t got = file.read(std::span(text));
  file.require(got == length, "truncated npy header: needs ", length, " bytes, has ", got);
  return text;
}

// "(184,)", "(2, 3)", "()": Python's spelling of a tuple.
std::string tuple_text(const Shape& shape) {
  std::string text = "(";
  for (int i = 0; i < shape.rank(); ++i) text += concat(i ? ", " : "", shape[i]);
  return text + (shape.rank() == 1 ? ",)" : ")");
}

}  // namespace

NpyArray read_npy(const std::string& path) {
  InputFile file("read_npy", path);
  const std::string header = read_header(file);
  NpyArray array = HeaderParser(file, header).parse();
  const std::string what = concat(array.dtype, array.shape);
  const auto bytes = byte_count(array.shape, size_of(array.dtype));
  file.require(bytes.has_value(), "the size of ", what, " does not fit 63 bits");
  array.bytes = file.read_payload<std::byte>(*bytes, what);
  return array;
}

void write_npy(const std::string& path, DType dtype, const Shape& shape,
               std::span<const std::byte> bytes) {
  constexpr std::string_view op = "write_npy";
  const auto descr = std::ranges::find(kDescrs, dtype, &Descr::dtype);
  if (descr == kDescrs.end()) fail(ErrorCode::unsupported, op, "npy has no dtype for ", dtype);
  const auto needed = byte_count(shape, size_of(dtype));
  check(needed.has_value(), op, "the size of ", dtype, shape, " does not fit 63 bits");
  check(*needed == std::ssize(bytes), op, dtype, shape, " has ", *needed, " bytes, got ",
        bytes.size());
  std::string header = concat("{'descr': '", descr->code,
                              "', 'fortran_order': False, 'shape': ", tuple_text(shape), ", }");
  const int64_t prefix = std::ssize(kMagic) + 4;  // version and length have two bytes each
  const int64_t total =
      (prefix + std::ssize(header) + 1 + kAlignment - 1) / kAlignment * kAlignment;
  header.resize(total - prefix - 1, ' ');
  header += '\n';
  AtomicFile file(std::string(op), path);
  file.write(kMagic);
  const std::array<char, 4> frame{1, 0, static_cast<char>(header.size() & 0xFF),
                                  static_cast<char>(header.size() >> 8)};
  file.write(std::string_view(frame.data(), frame.size()));
  file.write(header);
  file.write(bytes);
  file.commit();
}

}  // namespace gradus::nn
