#include "nn/data/idx.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "tests/support/expect_error.h"
#include "tests/support/files.h"

namespace gradus::nn {
namespace {

using namespace gradus::test;  // NOLINT: tests only

Bytes idx_header(uint8_t type, std::initializer_list<uint32_t> extents) {
  Bytes bytes{0, 0, type, static_cast<uint8_t>(extents.size())};
  for (const uint32_t extent : extents) bytes = join({bytes, big_endian(extent, 4)});
  return bytes;
}

Bytes counting(size_t count) {
  Bytes bytes(count);
  std::iota(bytes.begin(), bytes.end(), uint8_t{0});
  return bytes;
}

Bytes first(Bytes bytes, size_t count) {
  bytes.resize(count);
  return bytes;
}

template <class T>
std::vector<T> values(const IdxArray& array) {
  std::vector<T> out(array.bytes.size() / sizeof(T));
  std::memcpy(out.data(), array.bytes.data(), array.bytes.size());
  return out;
}

TEST(Idx, ReadsPixels) {
  const TempDir dir;
  const Bytes pixels = counting(2 * 3 * 4);
  const IdxArray array =
      read_idx(dir.file("images", join({idx_header(0x08, {2, 3, 4}), pixels})), 3);
  EXPECT_EQ(array.type, IdxType::u8);
  EXPECT_EQ(array.shape, (Shape{2, 3, 4}));
  EXPECT_EQ(array.bytes, pixels);
}

TEST(Idx, AllSixTypesComeInHostOrder) {
  const TempDir dir;
  const auto read = [&](uint8_t type, uint32_t count, const Bytes& data) {
    return read_idx(dir.file("array", join({idx_header(type, {count}), data})));
  };
  EXPECT_EQ(values<uint8_t>(read(0x08, 2, {1, 255})), (std::vector<uint8_t>{1, 255}));
  EXPECT_EQ(values<int8_t>(read(0x09, 2, {1, 255})), (std::vector<int8_t>{1, -1}));
  EXPECT_EQ(values<int16_t>(read(0x0B, 2, {0x01, 0x02, 0xFF, 0xFE})),
            (std::vector<int16_t>{0x0102, -2}));
  EXPECT_EQ(values<int32_t>(read(0x0C, 1, {0x01, 0x02, 0x03, 0x04})),
            (std::vector<int32_t>{0x01020304}));
  EXPECT_EQ(values<float>(read(0x0D, 1, {0x3F, 0xC0, 0, 0})), (std::vector<float>{1.5f}));
  EXPECT_EQ(values<double>(read(0x0E, 1, {0xC0, 0x04, 0, 0, 0, 0, 0, 0})),
            (std::vector<double>{-2.5}));
}

TEST(Idx, EmptyArray) {
  const TempDir dir;
  const IdxArray array = read_idx(dir.file("none", idx_header(0x08, {0, 28, 28})));
  EXPECT_EQ(array.shape, (Shape{0, 28, 28}));
  EXPECT_TRUE(array.bytes.empty());
}

TEST(Idx, D087_TruncatedHeader) {
  const TempDir dir;
  const Bytes header = idx_header(0x08, {10, 28, 28});
  for (const size_t present : {0, 3, 4, 8, 15}) {
    const Bytes bytes = first(header, present);
    const std::string text = "needs 16 bytes, has " + std::to_string(present);
    for (const Bytes& content : {bytes, gzip(bytes)}) {
      const std::string path = dir.file("short-images", content);
      EXPECT_ERROR(read_idx(path, 3), ErrorCode::io, "short-images", "truncated IDX header", text);
    }
  }
  // Without a rank to expect, the header itself says how long it is, once its magic is there.
  EXPECT_ERROR(read_idx(dir.file("a", first(header, 3))), ErrorCode::io, "needs 8 bytes, has 3");
  EXPECT_ERROR(read_idx(dir.file("a", first(header, 4))), ErrorCode::io, "needs 16 bytes, has 4");
  EXPECT_ERROR(read_idx(dir.file("a", first(header, 16))), ErrorCode::io,
               "needs 7840 bytes of data, has 0");
}

TEST(Idx, D088_TruncatedPayload) {
  const TempDir dir;
  const Bytes bytes = join({idx_header(0x08, {10, 28, 28}), counting(100)});
  for (const Bytes& content : {bytes, gzip(bytes)}) {
    const std::string path = dir.file("images", content);
    EXPECT_ERROR(read_idx(path, 3), ErrorCode::io, "images", "truncated", "u8[10,28,28]",
                 "needs 7840 bytes of data, has 100");
  }
}

TEST(Idx, D088_HeaderThatPromisesMoreThanTheMemory) {
  const TempDir dir;
  const Bytes huge = join({idx_header(0x08, {0xFFFFFFFF, 28, 28}), counting(100)});
  const Bytes wraps = join({idx_header(0x08, {65536, 65536, 65536}), counting(100)});
  const Bytes beyond_63_bits = join({idx_header(0x0E, {0xFFFFFFFF, 0xFFFFFFFF, 2}), counting(8)});
  for (const bool packed : {false, true}) {
    const auto path = [&](const Bytes& bytes) {
      return dir.file("images", packed ? gzip(bytes) : bytes);
    };
    EXPECT_ERROR(read_idx(path(huge), 3), ErrorCode::io, "needs 3367254359280 bytes of data",
                 "has 100");
    EXPECT_ERROR(read_idx(path(wraps), 3), ErrorCode::io, "needs 281474976710656 bytes of data",
                 "has 100");
    EXPECT_ERROR(read_idx(path(beyond_63_bits), 3), ErrorCode::io,
                 "f64[4294967295,4294967295,2] does not fit 63 bits");
  }
}

TEST(Idx, OversizedPayload) {
  const TempDir dir;
  const Bytes bytes = join({idx_header(0x08, {2, 3}), counting(7)});
  EXPECT_ERROR(read_idx(dir.file("plain", bytes)), ErrorCode::io, "plain", "oversized",
               "needs 6 bytes of data, has 7");
  EXPECT_ERROR(read_idx(dir.file("packed", gzip(bytes))), ErrorCode::io, "packed", "oversized",
               "needs 6 bytes of data, has more");
}

TEST(Idx, D089_WrongMagic) {
  const TempDir dir;
  const Bytes tail = counting(12);
  EXPECT_ERROR(read_idx(dir.file("a", join({{0x61, 0x00, 0x08, 0x01}, tail}))), ErrorCode::io,
               "must begin with the bytes 00 00, begins with 61 00");
  EXPECT_ERROR(read_idx(dir.file("a", join({{0x00, 0x00, 0x07, 0x01}, tail}))), ErrorCode::io,
               "unknown IDX element type 07, expected 08, 09, 0B, 0C, 0D or 0E");
  EXPECT_ERROR(read_idx(dir.file("a", {0x00, 0x00, 0x08, 0x00})), ErrorCode::io, "zero dimensions");
  EXPECT_ERROR(read_idx(dir.file("a", join({idx_header(0x08, {1, 1, 1}), {5}})), 1), ErrorCode::io,
               "expected an IDX array of 1 dimensions, got 3");
  EXPECT_ERROR(read_idx(dir.file("a", join({{0x00, 0x00, 0x08, 0x09}, Bytes(36, 0)}))),
               ErrorCode::io, "at most 8 dimensions", "got 9");
}

TEST(Idx, D089_OnlySixElementTypes) {
  const TempDir dir;
  int accepted = 0;
  for (int type = 0; type < 256; ++type) {
    const std::string path = dir.file("a", idx_header(static_cast<uint8_t>(type), {0}));
    try {
      read_idx(path);
      ++accepted;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("unknown IDX element type"), std::string::npos);
    }
  }
  EXPECT_EQ(accepted, 6);
}

TEST(Idx, GzipMembersMayFollowEachOther) {
  const TempDir dir;
  const Bytes pixels = counting(200);
  const Bytes packed = join({gzip(join({idx_header(0x08, {200}), first(pixels, 50)})), gzip({}),
                             gzip(Bytes(pixels.begin() + 50, pixels.end()))});
  EXPECT_EQ(read_idx(dir.file("labels.gz", packed), 1).bytes, pixels);
}

TEST(Idx, LargeGzipGrowsInSteps) {
  const TempDir dir;
  Bytes pixels(5'000'001);
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i * i >> 8);
  const Bytes packed = gzip(join({idx_header(0x08, {5'000'001}), pixels}));
  EXPECT_EQ(read_idx(dir.file("large.gz", packed)).bytes, pixels);
}

TEST(Idx, TruncatedGzip) {
  const TempDir dir;
  const Bytes packed = gzip(join({idx_header(0x08, {200}), counting(200)}));
  // Every cut, the checksum's last byte included, is an error that names the file.
  for (size_t present = 2; present < packed.size(); ++present) {
    const std::string path = dir.file("cut.gz", first(packed, present));
    EXPECT_ERROR(read_idx(path, 1), ErrorCode::io, "cut.gz", "the compressed data ends after");
  }
  EXPECT_EQ(read_idx(dir.file("whole.gz", packed), 1).shape, (Shape{200}));
}

TEST(Idx, CorruptGzip) {
  const TempDir dir;
  const Bytes packed = gzip(join({idx_header(0x08, {200}), counting(200)}));
  Bytes checksum = packed;
  checksum[packed.size() - 8] ^= 1;
  EXPECT_ERROR(read_idx(dir.file("bad.gz", checksum)), ErrorCode::io, "bad.gz", "is corrupt");
  Bytes method = packed;
  method[2] = 7;
  EXPECT_ERROR(read_idx(dir.file("bad.gz", method)), ErrorCode::io, "bad.gz", "is corrupt");
  EXPECT_ERROR(read_idx(dir.file("bad.gz", join({packed, to_bytes("tail")}))), ErrorCode::io,
               "bad.gz", "is corrupt");
}

TEST(Idx, FlippedBitsNeverEscape) {
  const TempDir dir;
  const auto read = [](const std::string& path) { read_idx(path, 2); };
  const Bytes bytes = join({idx_header(0x08, {3, 4}), counting(12)});
  // Only the 12 data bytes may change unnoticed, and u8 may turn into i8.
  EXPECT_EQ(count_readable_flips(dir, bytes, read), 12 * 8 + 1);
  // gzip has a checksum; only its own header has bytes that say nothing about the data.
  EXPECT_LE(count_readable_flips(dir, gzip(bytes), read), 8 * 8);
}

TEST(Idx, NotAFile) {
  const TempDir dir;
  EXPECT_ERROR(read_idx(dir.path("absent")), ErrorCode::io, "absent", "cannot be opened",
               "No such file");
  EXPECT_ERROR(read_idx(dir.path()), ErrorCode::io, dir.path(), "is not a regular file");
}

}  // namespace
}  // namespace gradus::nn
