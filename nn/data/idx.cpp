#include "nn/data/idx.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <span>

#include "core/error.h"
#include "nn/io/byte_count.h"
#include "nn/io/input_file.h"

namespace gradus::nn {

namespace {

constexpr int64_t kMagicBytes = 4;
constexpr int64_t kExtentBytes = 4;

int64_t header_bytes(int rank) { return kMagicBytes + kExtentBytes * rank; }

// The element type that a magic number names; the magic's rank is left to the caller.
IdxType check_magic(const InputFile& file, const std::array<uint8_t, 4>& magic) {
  file.require(magic[0] == 0 && magic[1] == 0,
               "is not an IDX file: must begin with the bytes 00 00",
               fmt::format(", begins with {:02x} {:02x}", magic[0], magic[1]));
  constexpr std::array<uint8_t, 6> types{0x08, 0x09, 0x0B, 0x0C, 0x0D, 0x0E};
  file.require(std::ranges::find(types, magic[2]) != types.end(), "unknown IDX element type ",
               fmt::format("{:02X}", magic[2]), ", expected 08, 09, 0B, 0C, 0D or 0E");
  return static_cast<IdxType>(magic[2]);
}

void check_rank(const InputFile& file, int present, std::optional<int> expected) {
  file.require(present > 0, "the IDX header has zero dimensions");
  file.require(!expected || present == *expected, "expected an IDX array of ", expected.value_or(0),
               " dimensions, got ", present);
  file.require(present <= kMaxRank, "an IDX array of at most ", kMaxRank, " dimensions can be read",
               ", got ", present);
}

Shape read_shape(InputFile& file, int rank) {
  std::array<uint8_t, kMaxRank * kExtentBytes> bytes;
  const int64_t needed = kExtentBytes * rank;
  const int64_t got = file.read(std::span(bytes).first(needed));
  file.require(got == needed, "truncated IDX header: needs ", header_bytes(rank), " bytes, has ",
               kMagicBytes + got);
  Shape shape = Shape::filled(rank, 0);
  for (int64_t i = 0; i < needed; ++i) {
    int64_t& extent = shape[static_cast<int>(i / kExtentBytes)];
    extent = extent << 8 | bytes[i];
  }
  return shape;
}

void to_host_order(std::span<uint8_t> bytes, int64_t element_size) {
  if constexpr (std::endian::native == std::endian::big) return;
  if (element_size == 1) return;
  for (auto at = bytes.begin(); at != bytes.end(); at += element_size) {
    std::reverse(at, at + element_size);
  }
}

}  // namespace

std::string_view to_string(IdxType type) {
  switch (type) {
    case IdxType::u8:
      return "u8";
    case IdxType::i8:
      return "i8";
    case IdxType::i16:
      return "i16";
    case IdxType::i32:
      return "i32";
    case IdxType::f32:
      return "f32";
    case IdxType::f64:
      return "f64";
  }
  return "unknown";
}

int64_t size_of(IdxType type) {
  switch (type) {
    case IdxType::u8:
    case IdxType::i8:
      return 1;
    case IdxType::i16:
      return 2;
    case IdxType::i32:
    case IdxType::f32:
      return 4;
    case IdxType::f64:
      return 8;
  }
  fail(ErrorCode::invalid_argument, "size_of", "unknown IDX element type");
}

IdxArray read_idx(const std::string& path, std::optional<int> rank) {
  InputFile file("read_idx", path, /*gzip=*/true);
  std::array<uint8_t, kMagicBytes> magic;
  const size_t got = file.read(std::span(magic));
  // Without a rank to expect, the shortest header is that of one dimension.
  file.require(got == magic.size(), "truncated IDX header: needs ", header_bytes(rank.value_or(1)),
               " bytes, has ", got);
  IdxArray array;
  array.type = check_magic(file, magic);
  check_rank(file, magic[3], rank);
  array.shape = read_shape(file, magic[3]);
  const std::string what = concat(array.type, array.shape);
  const auto bytes = byte_count(array.shape, size_of(array.type));
  file.require(bytes.has_value(), "the size of ", what, " does not fit 63 bits");
  array.bytes = file.read_payload<uint8_t>(*bytes, what);
  to_host_order(array.bytes, size_of(array.type));
  return array;
}

}  // namespace gradus::nn
