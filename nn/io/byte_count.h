// Checked size arithmetic for headers that nobody has vouched for.
#pragma once

#include <cstdint>
#include <optional>

#include "core/shape.h"

namespace gradus::nn {

// Bytes of a dense array of `shape`; empty when an extent is negative or a product passes 2^63 - 1.
inline std::optional<int64_t> byte_count(const Shape& shape, int64_t element_size) {
  int64_t count = element_size;
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count)) return std::nullopt;
  }
  return count;
}

}  // namespace gradus::nn
