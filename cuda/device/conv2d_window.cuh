// Where a convolution finds its input, along one axis and over the output pixels. Forward and
// backward differ in four numbers only:
//
//   u = i·scale + shift + tap·step;   input coordinate u / divide, if that is whole and inside
//
//   forward, backward to the weights   scale = stride, shift = -padding, step =  dilation, divide 1
//   backward to the input              scale = 1,      shift =  padding, step = -dilation,
//                                      divide = stride
#pragma once

#include "cuda/device/quotient.cuh"

namespace gradus {

struct TapAxis {
  int taps = 1;
  int scale = 1;
  int shift = 0;
  int step = 1;
  int extent = 1;  // of the input
  FastDivisor divide;
};

// The output pixels, numbered in row-major order of (n, i, j).
struct PixelGrid {
  int64_t pixels = 0;
  FastDivisor height, width;
};

struct Gather {
  PixelGrid out;
  TapAxis h, w;
};

struct Pixel {
  int64_t n;
  int i, j;
};

__device__ __forceinline__ Pixel pixel_at(const PixelGrid& grid, int64_t m) {
  const int64_t row = quotient(grid.width, m), n = quotient(grid.height, row);
  return {n, static_cast<int>(row - n * grid.height.divisor),
          static_cast<int>(m - row * grid.width.divisor)};
}

// Input coordinate for u, or -1 where u falls between or outside the input.
template <bool Divided>
__device__ __forceinline__ int source_of(const TapAxis& axis, int u) {
  if constexpr (Divided) {
    if (u < 0) return -1;
    const uint32_t index = axis.divide.quotient(static_cast<uint32_t>(u));
    const bool whole = index * axis.divide.divisor == static_cast<uint32_t>(u);
    return whole && index < static_cast<uint32_t>(axis.extent) ? static_cast<int>(index) : -1;
  } else {
    return static_cast<uint32_t>(u) < static_cast<uint32_t>(axis.extent) ? u : -1;
  }
}

// A u that no tap can bring back inside: for pixels beyond the last one.
inline constexpr int kNoPixel = -(1 << 30);

}  // namespace gradus
