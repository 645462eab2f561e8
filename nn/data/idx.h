// Reader for IDX, the format of MNIST and Fashion-MNIST: 00 00 type ndim, ndim big-endian 32-bit
// extents, then the elements, big-endian and row-major.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/shape.h"

namespace gradus::nn {

// The values are the format's own type bytes.
enum class IdxType : uint8_t {
  u8 = 0x08,
  i8 = 0x09,
  i16 = 0x0B,
  i32 = 0x0C,
  f32 = 0x0D,
  f64 = 0x0E
};

std::string_view to_string(IdxType type);
int64_t size_of(IdxType type);  // bytes of one element

struct IdxArray {
  IdxType type = IdxType::u8;
  Shape shape;
  std::vector<uint8_t> bytes;  // elements in the byte order of this machine
};

// Reads a plain or gzip file. `rank`, where given, is the number of dimensions it must have.
// Throws io, naming the file, for anything but a complete file that holds just what its header
// says; nothing is allocated on the word of the header alone.
IdxArray read_idx(const std::string& path, std::optional<int> rank = std::nullopt);

}  // namespace gradus::nn
