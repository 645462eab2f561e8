#include "nn/io/npy.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/expect_error.h"
#include "tests/support/files.h"
#include "tests/support/locale_guard.h"

namespace gradus::nn {
namespace {

using namespace gradus::test;  // NOLINT: tests only

std::span<const std::byte> view(const Bytes& bytes) { return std::as_bytes(std::span(bytes)); }

Bytes data_of(const NpyArray& array) {
  Bytes bytes(array.bytes.size());
  if (!bytes.empty()) std::memcpy(bytes.data(), array.bytes.data(), bytes.size());
  return bytes;
}

const Bytes kMagic{0x93, 'N', 'U', 'M', 'P', 'Y'};

Bytes npy(const std::string& header, const Bytes& data) {
  return join({kMagic, {1, 0}, little_endian(header.size(), 2), to_bytes(header), data});
}

std::string dictionary(const std::string& descr, const std::string& shape) {
  return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
}

// The header of a version 1.0 file, newline included.
std::string header_of(const Bytes& file) {
  const int length = file[8] + 256 * file[9];
  return std::string(file.begin() + 10, file.begin() + 10 + length);
}

#define EXPECT_REFUSED(bytes, ...) \
  EXPECT_ERROR(read_npy(dir.file("a.npy", bytes)), ErrorCode::io, "a.npy", __VA_ARGS__)

class Npy : public testing::Test {
 protected:
  NpyArray read(const Bytes& bytes) { return read_npy(dir.file("a.npy", bytes)); }
  TempDir dir;
};

TEST_F(Npy, D098_ScalarEmptyAndOneElement) {
  const NpyArray scalar = read(npy(dictionary("<f8", "()"), f64_bytes({5})));
  EXPECT_EQ(scalar.dtype, DType::f64);
  EXPECT_EQ(scalar.shape, Shape{});
  EXPECT_EQ(data_of(scalar), f64_bytes({5}));
  const NpyArray empty = read(npy(dictionary("<f8", "(0,)"), {}));
  EXPECT_EQ(empty.shape, Shape{0});
  EXPECT_TRUE(empty.bytes.empty());
  const NpyArray one = read(npy(dictionary("<f8", "(1,)"), f64_bytes({7})));
  EXPECT_EQ(one.shape, Shape{1});
  EXPECT_EQ(data_of(one), f64_bytes({7}));
}

TEST_F(Npy, D099_WriterSpellsTuplesAsPythonDoes) {
  const std::pair<Shape, std::string> cases[] = {
      {{184}, "(184,)"}, {{}, "()"}, {{2, 3}, "(2, 3)"}, {{0, 4}, "(0, 4)"}};
  for (const auto& [shape, text] : cases) {
    const Bytes data(shape.numel() * 4, 1);
    write_npy(dir.path("a.npy"), DType::f32, shape, view(data));
    const Bytes file = read_file(dir.path("a.npy"));
    const std::string header = header_of(file);
    EXPECT_EQ(header.find("{'descr': '<f4', 'fortran_order': False, 'shape': " + text + ", }"), 0u)
        << header;
    EXPECT_EQ(header.back(), '\n');
    EXPECT_EQ(header.find('\n'), header.size() - 1);
    EXPECT_EQ((10 + header.size()) % 64, 0u);
    const NpyArray array = read_npy(dir.path("a.npy"));
    EXPECT_EQ(array.shape, shape);
    EXPECT_EQ(data_of(array), data);
  }
}

TEST_F(Npy, GoldenBytes) {
  const Bytes data{1, 2, 3, 4, 5, 6};
  write_npy(dir.path("a.npy"), DType::u8, {2, 3}, view(data));
  std::string header = "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }";
  header.resize(117, ' ');
  EXPECT_EQ(read_file(dir.path("a.npy")),
            join({kMagic, {1, 0, 118, 0}, to_bytes(header + "\n"), data}));
}

TEST_F(Npy, RoundTripOfEveryDType) {
  for (const DType dtype :
       {DType::f64, DType::f32, DType::f16, DType::u8, DType::i32, DType::i64}) {
    Bytes data(6 * size_of(dtype));
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(37 * i);
    write_npy(dir.path("a.npy"), dtype, {3, 1, 2}, view(data));
    const NpyArray array = read_npy(dir.path("a.npy"));
    EXPECT_EQ(array.dtype, dtype);
    EXPECT_EQ(array.shape, (Shape{3, 1, 2}));
    EXPECT_EQ(data_of(array), data);
  }
  EXPECT_EQ(dir.names(), std::vector<std::string>{"a.npy"});
}

TEST_F(Npy, OtherVersionsAndSpellings) {
  const std::string header = "{\"shape\":(2,1),'fortran_order' : False,  'descr':'|u1'}   \n";
  for (const uint8_t major : {2, 3}) {
    const NpyArray array =
        read(join({kMagic, {major, 0}, little_endian(header.size(), 4), to_bytes(header), {8, 9}}));
    EXPECT_EQ(array.shape, (Shape{2, 1}));
    EXPECT_EQ(data_of(array), (Bytes{8, 9}));
  }
  EXPECT_REFUSED(join({kMagic, {4, 0}, little_endian(8, 4)}), "version must be 1.0, 2.0 or 3.0",
                 "got 4.0");
  EXPECT_REFUSED(join({kMagic, {1, 1}, little_endian(8, 4)}), "got 1.1");
}

TEST_F(Npy, ColumnMajorIsBroughtIntoRowMajor) {
  const auto columns = [](const std::string& shape) {
    return "{'descr': '|u1', 'fortran_order': True, 'shape': " + shape + ", }\n";
  };
  // np.asfortranarray of [[1, 2, 3], [4, 5, 6]].
  EXPECT_EQ(data_of(read(npy(columns("(2, 3)"), {1, 4, 2, 5, 3, 6}))), (Bytes{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(data_of(read(npy(columns("(4,)"), {1, 2, 3, 4}))), (Bytes{1, 2, 3, 4}));
  EXPECT_EQ(data_of(read(npy(columns("()"), {7}))), Bytes{7});
  EXPECT_TRUE(read(npy(columns("(3, 0)"), {})).bytes.empty());
  // Element [i, j, k] of 2 x 2 x 2 is 100 i + 10 j + k, in 8 bytes.
  const NpyArray cube = read(npy("{'descr': '<f8', 'fortran_order': True, 'shape': (2, 2, 2), }\n",
                                 f64_bytes({0, 100, 10, 110, 1, 101, 11, 111})));
  EXPECT_EQ(data_of(cube), f64_bytes({0, 1, 10, 11, 100, 101, 110, 111}));
}

TEST_F(Npy, D100_SameBytesInAnyLocale) {
  const Bytes data(2621 * 401, 3);
  write_npy(dir.path("classic"), DType::u8, {2621, 401}, view(data));
  const CppLocaleGuard guard;
  write_npy(dir.path("grouped"), DType::u8, {2621, 401}, view(data));
  const Bytes bytes = read_file(dir.path("grouped"));
  EXPECT_NE(header_of(bytes).find("(2621, 401)"), std::string::npos);
  EXPECT_EQ(bytes, read_file(dir.path("classic")));
  EXPECT_EQ(read_npy(dir.path("grouped")).shape, (Shape{2621, 401}));
}

TEST_F(Npy, D100_DecimalCommaOfTheCLibrary) {
  const CLocaleGuard guard;
  if (!guard.found()) GTEST_SKIP() << "no locale with a decimal comma is installed";
  const Bytes data = f64_bytes({0.5, -1.25});
  write_npy(dir.path("a.npy"), DType::f64, {2}, view(data));
  EXPECT_EQ(data_of(read_npy(dir.path("a.npy"))), data);
}

TEST_F(Npy, TruncatedFile) {
  const Bytes whole = npy(dictionary("<f4", "(2,)"), f32_bytes({1, 2}));
  const size_t data_begin = whole.size() - 8;
  for (size_t present = 0; present < whole.size(); ++present) {
    Bytes cut = whole;
    cut.resize(present);
    if (present < 6) {
      EXPECT_REFUSED(cut, "is not a npy file");
    } else if (present < data_begin) {
      EXPECT_REFUSED(cut, "truncated npy header");
    } else {
      EXPECT_REFUSED(cut, "truncated: f32[2] needs 8 bytes of data, has " +
                              std::to_string(present - data_begin));
    }
  }
  EXPECT_REFUSED(join({whole, {0}}), "oversized: f32[2] needs 8 bytes of data, has 9");
  EXPECT_REFUSED(join({kMagic, {2, 0}, little_endian(0xFFFFFFFF, 4)}),
                 "header must have at most 65535 bytes, got 4294967295");
}

TEST_F(Npy, FlippedBitsNeverEscape) {
  const Bytes bytes = npy(dictionary("<f4", "(2,)"), f32_bytes({1, 2}));
  const int readable =
      count_readable_flips(dir, bytes, [](const std::string& path) { read_npy(path); });
  // The 8 data bytes, f4 turned into i4, and spaces that a flip turns into something else.
  EXPECT_GE(readable, 8 * 8);
  EXPECT_LE(readable, 8 * 8 + 8);
}

TEST_F(Npy, TruthsAreBytes) {
  const NpyArray truths = read(npy(dictionary("|b1", "(3,)"), {1, 0, 1}));
  EXPECT_EQ(truths.dtype, DType::u8);
  EXPECT_EQ(data_of(truths), (Bytes{1, 0, 1}));
}

TEST_F(Npy, WhatIsNotRead) {
  for (const char* descr : {">f8", "<f16", "<u4", "=f4", "f4", "<U5", "", "|O"}) {
    EXPECT_REFUSED(npy(dictionary(descr, "(1,)"), Bytes(8, 0)), "npy descr must be '<f8'",
                   "got '" + std::string(descr) + "'");
  }
  EXPECT_REFUSED(
      npy("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (1,), }\n", Bytes(4, 0)),
      "structured npy arrays are not supported");
  EXPECT_REFUSED(npy(dictionary("|u1", "(1, 1, 1, 1, 1, 1, 1, 1, 1)"), {0}), "at most 8");
  EXPECT_EQ(read(npy(dictionary("|u1", "(1, 1, 1, 1, 1, 1, 1, 1)"), {0})).shape.rank(), 8);
}

TEST_F(Npy, ShapeOverflow) {
  for (const char* shape : {"(4294967296, 4294967296)", "(4611686018427387904, 4)",
                            "(4611686018427387904,)", "(4611686018427387904, 4, 0)"}) {
    EXPECT_REFUSED(npy(dictionary("<f4", shape), {}), "does not fit 63 bits");
  }
  EXPECT_REFUSED(npy("{'shape': (", {}), "npy extents must be integers");
  EXPECT_REFUSED(npy(dictionary("|u1", "(4611686018427387904,)"), {1}),
                 "needs 4611686018427387904 bytes of data, has 1");
  for (const char* shape :
       {"(-1,)", "(1.5,)", "(9223372036854775808,)", "(01,)", "(None,)", "(2L,)", "(+2,)", "(,)",
        "(2,,)", "(0x2,)", "(2 3)", "(2", "[2]", "2"}) {
    const Bytes bytes = npy(dictionary("|u1", shape), {1, 2});
    EXPECT_REFUSED(bytes, "npy") << shape;
  }
  EXPECT_REFUSED(npy(dictionary("|u1", "(2)"), {1, 2}), "is written (2,), with a comma");
}

TEST_F(Npy, BrokenDictionary) {
  const std::pair<const char*, const char*> cases[] = {
      {"{'descr': '|u1', 'fortran_order': False, 'shape': ()}", "spaces and a newline"},
      {"{'descr': '|u1', 'fortran_order': False, 'shape': ()} x\n", "spaces and a newline"},
      {"{'descr': '|u1', 'fortran_order': False, 'shape': ()}\n\n", "spaces and a newline"},
      {"{'descr': '|u1', 'fortran_order': False}\n",
       "needs the keys descr, fortran_order and shape"},
      {"{'fortran_order': False, 'shape': ()}\n", "needs the keys"},
      {"{'descr': '|u1', 'descr': '|u1', 'fortran_order': False, 'shape': ()}\n", "key 'descr'"},
      {"{'descr': '|u1', 'fortran_order': False, 'shape': (), 'x': 1}\n", "key 'x'"},
      {"{'descr': '|u1', 'fortran_order': 0, 'shape': ()}\n", "True or False"},
      {"{'descr': '|u1' 'fortran_order': False, 'shape': ()}\n", "lacks '}'"},
      {"{'descr' '|u1', 'fortran_order': False, 'shape': ()}\n", "lacks ':'"},
      {"{'descr: |u1}\n", "does not end"},
      {"{descr: '|u1'}\n", "lacks a quoted string"},
      {"\n", "lacks '{'"},
      {"", "lacks '{'"}};
  for (const auto& [header, text] : cases) {
    EXPECT_REFUSED(npy(header, {1}), text);
  }
}

TEST_F(Npy, WriterChecksItsInput) {
  const Bytes data(8, 0);
  EXPECT_ERROR(write_npy(dir.path("a.npy"), DType::bf16, {4}, view(data)), ErrorCode::unsupported,
               "npy has no dtype for bf16");
  EXPECT_ERROR(write_npy(dir.path("a.npy"), DType::f32, {3}, view(data)),
               ErrorCode::invalid_argument, "f32[3] has 12 bytes, got 8");
  EXPECT_ERROR(write_npy(dir.path("a.npy"), DType::f32, {-2}, view(data)),
               ErrorCode::invalid_argument, "does not fit 63 bits");
  EXPECT_ERROR(write_npy(dir.path("no/a.npy"), DType::f32, {2}, view(data)), ErrorCode::io,
               "cannot be created");
  EXPECT_TRUE(dir.names().empty());
}

}  // namespace
}  // namespace gradus::nn
