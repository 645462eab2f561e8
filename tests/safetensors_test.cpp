#include "nn/io/safetensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/support/expect_error.h"
#include "tests/support/files.h"
#include "tests/support/locale_guard.h"

namespace gradus::nn {
namespace {

using namespace gradus::test;  // NOLINT: tests only

Bytes framed(const std::string& header, const Bytes& data) {
  return join({little_endian(header.size(), 8), to_bytes(header), data});
}

std::string padded(std::string header) {
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return header;
}

// The file of a header, padded, and of `count` data bytes.
Bytes with_data(const std::string& header, size_t count) {
  return framed(padded(header), Bytes(count, 0));
}

Bytes with_entry(const std::string& entry, size_t count) {
  return with_data("{\"layer.weight\":" + entry + "}", count);
}

std::string header_of(const Bytes& file) {
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  return std::string(file.begin() + 8, file.begin() + 8 + static_cast<std::ptrdiff_t>(length));
}

std::span<const std::byte> view(const Bytes& bytes) { return std::as_bytes(std::span(bytes)); }

Bytes data_of(const SafeTensor& tensor) {
  Bytes bytes(tensor.bytes.size());
  if (!bytes.empty()) std::memcpy(bytes.data(), tensor.bytes.data(), bytes.size());
  return bytes;
}

#define EXPECT_REFUSED(bytes, ...)                                                                 \
  EXPECT_ERROR(read_safetensors(dir.file("w.safetensors", bytes)), ErrorCode::io, "w.safetensors", \
               __VA_ARGS__)

class Safetensors : public testing::Test {
 protected:
  TempDir dir;
};

TEST_F(Safetensors, RoundTripOfEveryDType) {
  const Bytes f64 = f64_bytes({-1.5, 1e300}), f32 = f32_bytes({0.1f, -0.0f, 3.0f});
  const Bytes f16{0x00, 0x3C, 0x01, 0x7E}, bf16{0x80, 0x3F}, u8{0, 255, 7};
  const Bytes i32 = little_endian(0xFFFFFFFE, 4), i64 = little_endian(1ull << 40, 8);
  const SafeTensorView tensors[] = {{"u8", DType::u8, {3}, view(u8)},
                                    {"f16", DType::f16, {1, 2}, view(f16)},
                                    {"bf16", DType::bf16, {1}, view(bf16)},
                                    {"f32", DType::f32, {3, 1}, view(f32)},
                                    {"f64", DType::f64, {2}, view(f64)},
                                    {"i32", DType::i32, {}, view(i32)},
                                    {"i64", DType::i64, {1, 1, 1, 1, 1, 1, 1, 1}, view(i64)},
                                    {"none", DType::f32, {0, 5}, {}}};
  write_safetensors(dir.path("w"), tensors, {{"format", "pt"}, {"note", "\"é\"\n"}});
  const SafeTensors read = read_safetensors(dir.path("w"));
  ASSERT_EQ(read.tensors.size(), std::size(tensors));
  for (const SafeTensorView& tensor : tensors) {
    const SafeTensor* found = read.find(tensor.name);
    ASSERT_NE(found, nullptr) << tensor.name;
    EXPECT_EQ(found->dtype, tensor.dtype);
    EXPECT_EQ(found->shape, tensor.shape);
    EXPECT_TRUE(std::ranges::equal(found->bytes, tensor.bytes)) << tensor.name;
  }
  EXPECT_EQ(read.metadata.at("note"), "\"é\"\n");
  EXPECT_EQ(read.find("absent"), nullptr);
  EXPECT_EQ(dir.names(), std::vector<std::string>{"w"});
}

// The bytes that other readers rely on: changing them breaks every saved file.
TEST_F(Safetensors, GoldenBytes) {
  const Bytes weight = f32_bytes({1, -2}), steps = little_endian(3, 8), mask{1, 0, 1};
  const Bytes half{0x00, 0x3C, 0x00, 0xC0};
  const SafeTensorView tensors[] = {{"mask", DType::u8, {3}, view(mask)},
                                    {"b.weight", DType::f32, {2, 1}, view(weight)},
                                    {"steps", DType::i64, {}, view(steps)},
                                    {"half", DType::bf16, {2}, view(half)},
                                    {"a.weight", DType::f32, {2}, view(weight)}};
  write_safetensors(dir.path("w"), tensors, {{"format", "gradus"}});
  const std::string header =
      "{\"__metadata__\":{\"format\":\"gradus\"},"
      "\"steps\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
      "\"a.weight\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]},"
      "\"b.weight\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[16,24]},"
      "\"half\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[24,28]},"
      "\"mask\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[28,31]}}";
  const std::string spaces(336 - header.size(), ' ');
  EXPECT_LT(spaces.size(), 8u);
  EXPECT_EQ(read_file(dir.path("w")), join({{0x50, 0x01, 0, 0, 0, 0, 0, 0},
                                            to_bytes(header),
                                            to_bytes(spaces),
                                            {3, 0, 0, 0, 0, 0, 0, 0},
                                            {0, 0, 0x80, 0x3F, 0, 0, 0, 0xC0},
                                            {0, 0, 0x80, 0x3F, 0, 0, 0, 0xC0},
                                            {0, 0x3C, 0, 0xC0},
                                            {1, 0, 1}}));
}

TEST_F(Safetensors, NoTensors) {
  write_safetensors(dir.path("w"), {});
  EXPECT_EQ(header_of(read_file(dir.path("w"))), "{}      ");
  EXPECT_TRUE(read_safetensors(dir.path("w")).tensors.empty());
  EXPECT_TRUE(read_safetensors(dir.file("bare", framed("{}", {}))).tensors.empty());
}

TEST_F(Safetensors, D091_HeaderLength) {
  const Bytes tail(92, ' ');
  const Bytes all_ones(8, 0xFF);
  EXPECT_REFUSED(join({all_ones, tail}), "header length must be 2 to 92",
                 "got 18446744073709551615");
  Bytes wraps = all_ones;
  wraps[0] = 0xFB;
  EXPECT_REFUSED(join({wraps, tail}), "header length must be 2 to 92", "got 18446744073709551611");
  EXPECT_REFUSED(join({little_endian(100 - 7, 8), tail}), "must be 2 to 92", "got 93");
  EXPECT_REFUSED(join({little_endian(0, 8), tail}), "must be 2 to 92", "got 0");
  EXPECT_REFUSED(join({little_endian(1, 8), tail}), "must be 2 to 92", "got 1");
  EXPECT_REFUSED(join({little_endian(200'000'000, 8), tail}), "must be 2 to 92", "got 200000000");
  for (const size_t size : {0, 1, 7, 8, 9}) {
    EXPECT_REFUSED(Bytes(size, 0), "at least 10 bytes, this one has " + std::to_string(size));
  }
}

TEST_F(Safetensors, D092_ShapeOverflow) {
  const auto entry = [](const std::string& shape, const std::string& offsets) {
    return "{\"dtype\":\"F32\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
  };
  for (const char* shape : {"[4294967296,4294967296]", "[4611686018427387904,4]",
                            "[4611686018427387904]", "[4611686018427387904,4,0]"}) {
    EXPECT_REFUSED(with_entry(entry(shape, "[0,0]"), 0), "\"layer.weight\"", shape,
                   "does not fit 63 bits");
  }
  for (const char* extent : {"-1", "1.5", "1.0", "1e2", "\"2\"", "null", "true", "\"\"",
                             "9223372036854775808", "99999999999999999999999"}) {
    EXPECT_REFUSED(with_entry(entry("[2," + std::string(extent) + "]", "[0,0]"), 0),
                   "\"layer.weight\"", "extents must be integers from 0 to 2^63 - 1");
  }
  EXPECT_REFUSED(with_entry(entry("2", "[0,8]"), 8), "shape must be an array, got 2");
  EXPECT_REFUSED(with_entry(entry("[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4), "\"layer.weight\"",
                 "at most 8 dimensions", "got 9");
}

TEST_F(Safetensors, D093_FormOfOffsets) {
  const auto entry = [](const std::string& offsets) {
    return R"({"dtype":"F32","shape":[4],"data_offsets":)" + offsets + "}";
  };
  EXPECT_REFUSED(with_entry(entry("[16,0]"), 16), "\"layer.weight\"", "[16,0] run backwards");
  for (const char* offsets : {"[-4,12]", "[0]", "[0,4,8]", "[0.0,4.0]", "[\"0\",\"4\"]", "[]", "16",
                              "[0,18446744073709551616]"}) {
    EXPECT_REFUSED(with_entry(entry(offsets), 16), "\"layer.weight\"",
                   "data_offsets must be two non-negative integers");
  }
  EXPECT_REFUSED(with_entry(entry("[0,20]"), 16), "\"layer.weight\"", "pass the 16 bytes of data");
  EXPECT_REFUSED(with_entry(entry("[0,18446744073709551615]"), 16), "pass the 16 bytes of data");
  EXPECT_REFUSED(with_entry(entry("[0,12]"), 12), "\"layer.weight\"",
                 "f32[4] has 16 bytes, but data_offsets [0,12] span 12");
  EXPECT_EQ(
      read_safetensors(dir.file("w", with_entry(entry("[0,16]"), 16))).tensors[0].bytes.size(),
      16u);
}

std::string two_f32(const std::string& a_offsets, const std::string& b_offsets) {
  return R"({"A":{"dtype":"F32","shape":[2],"data_offsets":)" + a_offsets +
         R"(},"B":{"dtype":"F32","shape":[2],"data_offsets":)" + b_offsets + "}}";
}

TEST_F(Safetensors, D094_DataIsCoveredExactlyOnce) {
  EXPECT_REFUSED(with_data(two_f32("[0,8]", "[4,12]"), 12), "\"B\" overlaps",
                 "begins at 4, expected 8");
  EXPECT_REFUSED(with_data(two_f32("[0,8]", "[0,8]"), 8), "\"B\" overlaps");
  EXPECT_REFUSED(with_data(two_f32("[0,8]", "[12,20]"), 20), "a hole precedes tensor \"B\"",
                 "begins at 12, expected 8");
  EXPECT_REFUSED(with_data(two_f32("[4,12]", "[12,20]"), 20), "a hole precedes tensor \"A\"");
  const std::string one = R"({"A":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_REFUSED(with_data(one, 9), "the tensors have 8 bytes of data, the file has 9");
  EXPECT_REFUSED(with_data(one, 7), "\"A\"", "pass the 7 bytes of data");
  EXPECT_REFUSED(with_data("{}", 1), "the tensors have 0 bytes of data, the file has 1");
}

TEST_F(Safetensors, D094_UnorderedButContiguous) {
  const Bytes bytes = framed(padded(two_f32("[8,16]", "[0,8]")), f32_bytes({1, 2, 3, 4}));
  const SafeTensors read = read_safetensors(dir.file("w", bytes));
  EXPECT_EQ(data_of(*read.find("A")), f32_bytes({3, 4}));
  EXPECT_EQ(data_of(*read.find("B")), f32_bytes({1, 2}));
}

TEST_F(Safetensors, D095_UnknownDType) {
  for (const char* dtype :
       {"\"F32X\"", "\"f32\"", "\"\"", "7", "null", "\"BOOL\"", "\"F8_E4M3\""}) {
    const std::string entry =
        "{\"dtype\":" + std::string(dtype) + ",\"shape\":[1],\"data_offsets\":[99999999,4]}";
    EXPECT_REFUSED(with_entry(entry, 4),
                   "tensor \"layer.weight\": unknown dtype " + std::string(dtype), "F64, F32");
  }
  EXPECT_REFUSED(with_entry(R"({"dtype":"F32","shape":[1],"data_offsets":[99999999,4]})", 4),
                 "\"layer.weight\"", "run backwards");
}

TEST_F(Safetensors, EntryHasExactlyItsKeys) {
  for (const char* entry :
       {R"({"dtype":"F32","shape":[1]})", R"({"dtype":"F32","data_offsets":[0,4]})",
        R"({"shape":[1],"data_offsets":[0,4]})", "[]", "4", "null",
        R"({"dtype":"F32","shape":[1],"data_offsets":[0,4],"strides":[1]})"}) {
    EXPECT_REFUSED(with_entry(entry, 4), "\"layer.weight\"",
                   "expected an object of dtype, shape and data_offsets");
  }
}

TEST_F(Safetensors, RepeatedKeys) {
  const std::string entry = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  EXPECT_REFUSED(with_data("{\"A\":" + entry + ",\"A\":" + entry + "}", 4),
                 "the header has the key \"A\" twice");
  EXPECT_REFUSED(with_entry(R"({"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]})", 4),
                 "the header has the key \"dtype\" twice");
  // The same key in two objects is no repetition.
  EXPECT_EQ(
      read_safetensors(dir.file("w", with_data(two_f32("[0,8]", "[8,16]"), 16))).tensors.size(),
      2u);
}

TEST_F(Safetensors, Metadata) {
  const SafeTensors read = read_safetensors(
      dir.file("w", with_data(R"({"__metadata__":{"format":"pt","epoch":"3"}})", 0)));
  EXPECT_EQ(read.metadata, (std::map<std::string, std::string>{{"format", "pt"}, {"epoch", "3"}}));
  EXPECT_TRUE(read.tensors.empty());
  EXPECT_REFUSED(with_data(R"({"__metadata__":{"epoch":3}})", 0), "__metadata__", "\"epoch\"",
                 "must be a string, got 3");
  EXPECT_REFUSED(with_data(R"({"__metadata__":["a"]})", 0), "must be an object of strings");
}

TEST_F(Safetensors, BrokenJson) {
  EXPECT_REFUSED(framed("[]", {}), "must begin with '{'");
  EXPECT_REFUSED(framed(" {}", {}), "must begin with '{'");
  EXPECT_REFUSED(framed("\xEF\xBB\xBF{}", {}), "must begin with '{'");
  EXPECT_REFUSED(framed("{}\n", {}), "must end with '}' and spaces");
  EXPECT_REFUSED(framed("{\"a\":}", {}), "not valid JSON");
  EXPECT_REFUSED(framed("{}{}", {}), "not valid JSON");
  EXPECT_REFUSED(framed("{\"\xFF\":{}}", {}), "not valid JSON");
  EXPECT_REFUSED(framed("{\"a\":1e999}", {}), "not valid JSON");
  EXPECT_REFUSED(framed("{\"a\":{\"shape\":[[2]]}}", {}), "nested deeper than 3");
  EXPECT_REFUSED(framed("{\"a\":" + std::string(100'000, '[') + "}", {}), "nested deeper than 3");
}

TEST_F(Safetensors, D096_WriterPadsWithSpaces) {
  const Bytes value = f32_bytes({1});
  for (size_t length = 1; length <= 8; ++length) {
    const std::string name(length, 'x');
    const SafeTensorView tensor{name, DType::f32, {1}, view(value)};
    write_safetensors(dir.path("w"), std::span(&tensor, 1));
    const Bytes file = read_file(dir.path("w"));
    const std::string header = header_of(file);
    EXPECT_EQ((8 + header.size()) % 8, 0u);
    EXPECT_EQ(file.size(), 8 + header.size() + 4);
    const size_t end = header.find_last_not_of(' ');
    EXPECT_EQ(header[end], '}');
    EXPECT_LT(header.size() - end, 9u);
    EXPECT_EQ(data_of(*read_safetensors(dir.path("w")).find(name)), value);
  }
}

TEST_F(Safetensors, D096_ReaderTakesSpacesAndRefusesNul) {
  const std::string header = R"({"A":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  const Bytes value = f32_bytes({1});
  EXPECT_EQ(data_of(*read_safetensors(dir.file("w", framed(header + "   ", value))).find("A")),
            value);
  EXPECT_REFUSED(framed(header + std::string(3, '\0'), value), "NUL byte", "spaces");
  EXPECT_REFUSED(framed(header + std::string(3, '\0') + "}", value), "NUL byte");
}

TEST_F(Safetensors, D097_UnalignedData) {
  // 8 + 115 bytes of header leave both tensors at odd places.
  std::string header = R"({"A":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                       R"("B":{"dtype":"F64","shape":[1],"data_offsets":[8,16]}})";
  header.resize(115, ' ');
  const SafeTensors read =
      read_safetensors(dir.file("w", framed(header, join({f32_bytes({1, 2}), f64_bytes({3})}))));
  const SafeTensor *a = read.find("A"), *b = read.find("B");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a->bytes.data()) % alignof(double), 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b->bytes.data()) % alignof(double), 0u);
  EXPECT_EQ(reinterpret_cast<const float*>(a->bytes.data())[1], 2.0f);
  EXPECT_EQ(reinterpret_cast<const double*>(b->bytes.data())[0], 3.0);
}

TEST_F(Safetensors, D097_HeaderOfOddLength) {
  // A header of 66 bytes puts the data at byte 74, and the U8 puts the F32 three bytes further.
  std::string header = R"({"A":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  header.resize(66, ' ');
  const SafeTensors read = read_safetensors(dir.file("w", framed(header, f32_bytes({1, 2}))));
  EXPECT_EQ(data_of(read.tensors[0]), f32_bytes({1, 2}));
  const std::string odd = R"({"A":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                          R"("B":{"dtype":"F32","shape":[2],"data_offsets":[3,11]}})";
  const Bytes data = join({{7, 8, 9}, f32_bytes({1, 2})});
  EXPECT_EQ(data_of(*read_safetensors(dir.file("w", framed(odd, data))).find("B")),
            f32_bytes({1, 2}));
}

TEST_F(Safetensors, D100_SameBytesInAnyLocale) {
  const Bytes zeros(2621 * 401 * 4, 0);
  const SafeTensorView tensor{"w", DType::f32, {2621, 401}, view(zeros)};
  write_safetensors(dir.path("classic"), std::span(&tensor, 1));
  const CppLocaleGuard guard;
  write_safetensors(dir.path("grouped"), std::span(&tensor, 1));
  const Bytes bytes = read_file(dir.path("grouped"));
  EXPECT_NE(header_of(bytes).find("\"shape\":[2621,401]"), std::string::npos);
  EXPECT_EQ(bytes, read_file(dir.path("classic")));
  EXPECT_EQ(read_safetensors(dir.path("grouped")).tensors[0].shape, (Shape{2621, 401}));
}

TEST_F(Safetensors, D100_DecimalCommaOfTheCLibrary) {
  const CLocaleGuard guard;
  if (!guard.found()) GTEST_SKIP() << "no locale with a decimal comma is installed";
  const Bytes values = f32_bytes({0.5f, -1.25f});
  const SafeTensorView tensor{"w", DType::f32, {2}, view(values)};
  write_safetensors(dir.path("w"), std::span(&tensor, 1));
  EXPECT_EQ(data_of(*read_safetensors(dir.path("w")).find("w")), values);
  EXPECT_REFUSED(with_entry(R"({"dtype":"F32","shape":[1.5],"data_offsets":[0,4]})", 4),
                 "extents must be integers");
}

TEST_F(Safetensors, FlippedBitsAndCutsNeverEscape) {
  const Bytes bytes = framed(padded(two_f32("[0,8]", "[8,16]")), f32_bytes({1, 2, 3, 4}));
  const int readable =
      count_readable_flips(dir, bytes, [](const std::string& path) { read_safetensors(path); });
  // The 16 data bytes and most bits of the two names may change unnoticed.
  EXPECT_GE(readable, 16 * 8);
  EXPECT_LE(readable, 16 * 8 + 2 * 8 + 8);
  for (size_t present = 0; present < bytes.size(); ++present) {
    EXPECT_REFUSED(Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(present)), "");
  }
}

TEST_F(Safetensors, WriterChecksItsInput) {
  const Bytes value = f32_bytes({1});
  const auto write = [&](std::vector<SafeTensorView> tensors,
                         std::map<std::string, std::string> metadata = {}) {
    write_safetensors(dir.path("w"), tensors, metadata);
  };
  const SafeTensorView good{"a", DType::f32, {1}, view(value)};
  EXPECT_ERROR(write({good, good}), ErrorCode::invalid_argument, "two tensors are named \"a\"");
  EXPECT_ERROR(write({{"__metadata__", DType::f32, {1}, view(value)}}), ErrorCode::invalid_argument,
               "must not be named \"__metadata__\"");
  EXPECT_ERROR(write({{"a", DType::f64, {1}, view(value)}}), ErrorCode::invalid_argument,
               "tensor \"a\": f64[1] has 8 bytes, got 4");
  EXPECT_ERROR(write({{"a", DType::f32, {-1}, view(value)}}), ErrorCode::invalid_argument,
               "f32[-1] does not fit 63 bits");
  EXPECT_ERROR(write({{"\xFF", DType::f32, {1}, view(value)}}), ErrorCode::invalid_argument,
               "must be UTF-8");
  EXPECT_ERROR(write({good}, {{"k", "\xFF"}}), ErrorCode::invalid_argument, "must be UTF-8");
  EXPECT_TRUE(dir.names().empty());
}

// Of no bytes a span may hold a null pointer or any other, and what is read holds a null pointer.
TEST_F(Safetensors, TheChecksumCoversWhatPrecedesAnEmptyTensor) {
  const Bytes value = f32_bytes({1, 2});
  for (const std::span<const std::byte> none :
       {std::span<const std::byte>(), view(value).first(0)}) {
    const std::vector<SafeTensorView> tensors{{"name", DType::f32, {2}, view(value)},
                                              {"none", DType::u8, {0, 3}, none}};
    // A key that ends as the checksum's is none.
    write_safetensors(dir.path("w"), tensors, {{"a\"gradus.crc32", "12345678"}}, true);
    const SafeTensors read = read_safetensors(dir.path("w"));
    EXPECT_EQ(read.tensors.size(), 2u);
    write_safetensors(dir.path("copy"), tensors, read.metadata);  // it is no metadata of a copy
    EXPECT_FALSE(read_safetensors(dir.path("copy")).metadata.contains(std::string(kChecksumKey)));
    Bytes bytes = read_file(dir.path("w"));
    const auto name = std::ranges::search(bytes, to_bytes("name"));
    ASSERT_FALSE(name.empty());
    *name.begin() = 'N';
    dir.file("changed", bytes);
    EXPECT_ERROR(read_safetensors(dir.path("changed")), ErrorCode::io, "its checksum is");
  }
}

TEST_F(Safetensors, FailedWriteKeepsTheOldFile) {
  const Bytes value = f32_bytes({1});
  const SafeTensorView tensor{"a", DType::f32, {1}, view(value)};
  EXPECT_ERROR(write_safetensors(dir.path("no/w"), std::span(&tensor, 1)), ErrorCode::io,
               dir.path("no/w"), "cannot be created", "No such file");
  EXPECT_ERROR(write_safetensors(dir.path(), std::span(&tensor, 1)), ErrorCode::io,
               "is not a regular file");
  EXPECT_ERROR(read_safetensors(dir.path("absent")), ErrorCode::io, "absent", "cannot be opened");
}

}  // namespace
}  // namespace gradus::nn
