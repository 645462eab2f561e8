#include "nn/io/npz.h"

#include <gtest/gtest.h>
#include <zip.h>

#include <cstring>

#include "tests/support/expect_error.h"
#include "tests/support/files.h"

namespace gradus::nn {
namespace {

using namespace gradus::test;  // NOLINT: tests only

NpyArray array(DType dtype, const Shape& shape, const Bytes& data) {
  const auto bytes = std::as_bytes(std::span(data));
  return {.dtype = dtype, .shape = shape, .bytes = {bytes.begin(), bytes.end()}};
}

bool equal(const NpyArray& a, const NpyArray& b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.bytes == b.bytes;
}

class Npz : public testing::Test {
 protected:
  // An archive with these entries, deflated or stored, as another program would write it.
  std::string archive(const std::vector<std::pair<std::string, Bytes>>& entries,
                      zip_int32_t method = ZIP_CM_DEFLATE) {
    const std::string path = dir.path("other.npz");
    zip_t* zip = zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, nullptr);
    for (const auto& [name, bytes] : entries) {
      zip_source_t* source = zip_source_buffer(zip, bytes.data(), bytes.size(), 0);
      const zip_int64_t index = name.ends_with('/') ? zip_dir_add(zip, name.c_str(), 0)
                                                    : zip_file_add(zip, name.c_str(), source, 0);
      if (name.ends_with('/'))
        zip_source_free(source);
      else
        zip_set_file_compression(zip, static_cast<zip_uint64_t>(index), method, 0);
    }
    EXPECT_EQ(zip_close(zip), 0);
    return path;
  }
  // The bytes of an npy file.
  Bytes npy(const NpyArray& one) {
    write_npy(dir.path("one.npy"), one.dtype, one.shape, one.bytes);
    return read_file(dir.path("one.npy"));
  }
  TempDir dir;
};

TEST_F(Npz, RoundTrip) {
  const NpyArrays arrays{{"x", array(DType::f32, {2}, f32_bytes({1.5F, -2}))},
                         {"groups", array(DType::i64, {}, little_endian(2, 8))},
                         {"empty", array(DType::f64, {0, 3}, {})},
                         {"half", array(DType::f16, {3}, {1, 2, 3, 4, 5, 6})}};
  write_npz(dir.path("a.npz"), arrays);
  const NpyArrays read = read_npz(dir.path("a.npz"));
  ASSERT_EQ(read.size(), arrays.size());
  for (const auto& [name, one] : arrays) EXPECT_TRUE(equal(read.at(name), one)) << name;
  write_npz(dir.path("b.npz"), arrays);
  const Bytes bytes = read_file(dir.path("a.npz"));
  EXPECT_EQ(bytes, read_file(dir.path("b.npz")));
  const auto time = bytes.begin() + 10;  // of the first entry, then its date: no clock's
  EXPECT_EQ(Bytes(time, time + 4), (Bytes{0, 0, 33, 0}));
  EXPECT_EQ(dir.names().size(), 2U);
}

TEST_F(Npz, NamesOfAllLengthsThatZipHas) {
  const NpyArray x = array(DType::u8, {2}, {1, 2});
  for (const size_t length : {1, 65531}) {
    const std::string name(length, 'a');
    write_npz(dir.path("a.npz"), {{name, x}});
    EXPECT_TRUE(equal(read_npz(dir.path("a.npz")).at(name), x)) << length;
  }
}

TEST_F(Npz, ReadsDeflatedEntries) {
  const NpyArray zeros = array(DType::f64, {1000, 1000}, Bytes(8000000, 0));
  const std::string path = archive({{"zeros.npy", npy(zeros)}});
  EXPECT_LT(read_file(path).size(), 100000U);
  EXPECT_TRUE(equal(read_npz(path).at("zeros"), zeros));
}

TEST_F(Npz, WhatIsNotRead) {
  const Bytes one = npy(array(DType::u8, {2}, {1, 2}));
  EXPECT_ERROR(read_npz(archive({{"x.npy", one}, {"notes.txt", {1}}})), ErrorCode::io, "other.npz",
               "notes.txt", "does not end in .npy");
  EXPECT_ERROR(read_npz(archive({{"folder/", {}}})), ErrorCode::io, "folder/");
  EXPECT_ERROR(read_npz(archive({{"x.npy", {1, 2, 3}}})), ErrorCode::io, "other.npz", "x.npy",
               "is not a npy file");
  Bytes cut = one;
  cut.pop_back();
  EXPECT_ERROR(read_npz(archive({{"x.npy", cut}})), ErrorCode::io, "entry 'x.npy'",
               "truncated: u8[2] needs 2 bytes of data, has 1");
  Bytes long_one = one;
  long_one.resize(size_t{64} << 20);  // no more is unpacked than shows that it is too long
  EXPECT_ERROR(read_npz(archive({{"x.npy", long_one}})), ErrorCode::io,
               "oversized: u8[2] needs 2 bytes of data, has 1048448");
  EXPECT_ERROR(read_npz(dir.file("a.npz", one)), ErrorCode::io, "a.npz",
               "is not a readable npz file");
  EXPECT_ERROR(read_npz(dir.file("a.npz", {})), ErrorCode::io, "a.npz");
  EXPECT_ERROR(read_npz(dir.path("missing.npz")), ErrorCode::io, "missing.npz");
  EXPECT_ERROR(read_npz(dir.path()), ErrorCode::io, "regular file");
}

// A header that says that the sizes stand elsewhere, where they do not.
TEST_F(Npz, AFileThatIsThereIsNotSaidToBeMissing) {
  write_npz(dir.path("a.npz"), {{"x", array(DType::u8, {2}, {1, 2})}});
  Bytes bytes = read_file(dir.path("a.npz"));
  std::fill_n(bytes.begin() + 18, 8, uint8_t{0xFF});
  EXPECT_ERROR(read_npz(dir.file("a.npz", bytes)), ErrorCode::io, "a part is missing");
}

TEST_F(Npz, TruncatedFilesAreRefused) {
  for (const zip_int32_t method : {ZIP_CM_STORE, ZIP_CM_DEFLATE}) {
    const Bytes whole =
        read_file(archive({{"x.npy", npy(array(DType::f32, {2}, f32_bytes({1, 2})))}}, method));
    for (size_t present = 0; present < whole.size(); ++present) {
      Bytes part = whole;
      part.resize(present);
      EXPECT_ERROR(read_npz(dir.file("cut.npz", part)), ErrorCode::io, "cut.npz") << present;
    }
  }
}

// One bit of each byte turned: an io error, or the same array; never other values.
TEST_F(Npz, FlippedBitsNeverGiveOtherValues) {
  const NpyArray x = array(DType::f32, {2}, f32_bytes({1, 2}));
  write_npz(dir.path("a.npz"), {{"x", x}});
  const Bytes bytes = read_file(dir.path("a.npz"));
  int refused = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    Bytes flipped = bytes;
    flipped[at] ^= static_cast<uint8_t>(1 << at % 8);
    try {
      for (const auto& [name, one] : read_npz(dir.file("flipped.npz", flipped)))
        EXPECT_TRUE(equal(one, x)) << "byte " << at;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::io) << error.what();
      ++refused;
    }
  }
  EXPECT_GE(refused, 128);  // the npy file, which the checksum covers, and most of the frame
}

TEST_F(Npz, WriterChecksItsInput) {
  const NpyArray x = array(DType::u8, {2}, {1, 2});
  EXPECT_ERROR(write_npz(dir.path("a.npz"), {}), ErrorCode::invalid_argument, "no arrays");
  for (const char* name : {"", "a/b"})
    EXPECT_ERROR(write_npz(dir.path("a.npz"), {{name, x}}), ErrorCode::invalid_argument,
                 "cannot be named");
  EXPECT_ERROR(write_npz(dir.path("a.npz"), {{std::string("a\0b", 3), x}}),
               ErrorCode::invalid_argument, "cannot be named");
  EXPECT_ERROR(write_npz(dir.path("a.npz"), {{"a\xFF", x}}), ErrorCode::invalid_argument,
               "must be UTF-8");
  EXPECT_ERROR(write_npz(dir.path("a.npz"), {{std::string(65532, 'a'), x}}),
               ErrorCode::invalid_argument, "at most 65531 bytes, got 65532");
  EXPECT_ERROR(write_npz(dir.path("a.npz"), {{"x", array(DType::u8, {3}, {1, 2})}}),
               ErrorCode::invalid_argument, "u8[3] has 3 bytes, got 2");
  EXPECT_ERROR(write_npz(dir.path("a.npz"), {{"x", array(DType::bf16, {1}, {1, 2})}}),
               ErrorCode::unsupported, "bf16");
  EXPECT_ERROR(write_npz(dir.path("no/a.npz"), {{"x", x}}), ErrorCode::io, "cannot be created");
  EXPECT_TRUE(dir.names().empty());
}

}  // namespace
}  // namespace gradus::nn
