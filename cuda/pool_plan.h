// Host-only choices of the kernels over windows of 2 x 2 side by side.
#pragma once

#include "cuda/image.h"

namespace gradus {

// Elements of `size` bytes that one access to a row of x takes: the largest power of two up to 16
// bytes that divides the width and that x, and y at half of it, are aligned to; 1 where the rows of
// windows do not cover those of x. Contiguous tensors.
inline int pair_row_width(const Image& x, const Image& y, int64_t size) {
  if (2 * static_cast<int64_t>(y.w) != x.w) return 1;
  const auto is_aligned = [size](const void* data, int64_t count) {
    return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(count * size) == 0;
  };
  for (int64_t width = 16 / size; width > 1; width /= 2) {
    if (x.w % width == 0 && is_aligned(x.data, width) && is_aligned(y.data, width / 2))
      return static_cast<int>(width);
  }
  return 1;
}

}  // namespace gradus
