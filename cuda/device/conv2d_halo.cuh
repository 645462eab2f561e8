// Convolutions whose input is brought into shared memory once, as a tile with its halo, and read
// from there for every tap by matrix loads at shifted addresses.
//
// A pixel of the tile has its channels, padded with zeros to Steps * 32 bytes, and 16 bytes more,
// so that eight neighbouring pixels lie in different banks whatever the tap. Pixels outside the
// input are zeros in the tile: the inner loops know no border.
#pragma once

#include "cuda/device/conv2d_halo_tile.h"
#include "cuda/device/mma.cuh"
#include "cuda/device/shared.cuh"
#include "cuda/device/vector.cuh"

namespace gradus {

// Copies 16 bytes past the first-level cache, or writes zeros.
__device__ __forceinline__ void copy_async_streamed(uint32_t destination, const void* source,
                                                    bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(destination), "l"(source), "r"(valid ? 16 : 0)
               : "memory");
}
// The same for 4 bytes, which go through the first-level cache.
__device__ __forceinline__ void copy_async_word(uint32_t destination, const void* source,
                                                bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               :
               : "r"(destination), "l"(source), "r"(valid ? 4 : 0)
               : "memory");
}

// Starts copying `rows` rows of `columns` pixels, from row u0, column v0 of image n0 on, to
// shared memory, where pixels are `pitch` bytes apart; rows of further images follow every
// `rows_per_image`.
template <class T, int Steps>
__device__ __forceinline__ void load_halo(uint32_t to, int pitch, const T* in, int images, int h,
                                          int w, int groups, int group, int channels, int rows,
                                          int rows_per_image, int columns, int n0, int u0, int v0) {
  // A lane has one vector of every so many pixels of a row.
  constexpr int kVectors = Steps * 2, kColumns = 32 / kVectors;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const int pixel = groups * channels;
  const int column0 = lane / kVectors, channel = lane % kVectors * kFullPack<T>;
  const T* const base =
      in + static_cast<int64_t>(v0 + column0) * pixel + group * channels + channel;
  for (int row = warp, image = 0, r = warp; row < rows; row += warps, r += warps) {
    for (; r >= rows_per_image; r -= rows_per_image) ++image;
    const int u = u0 + r;
    const bool inside = n0 + image < images && static_cast<unsigned>(u) < static_cast<unsigned>(h);
    const unsigned width = inside && channel < channels ? w : 0;
    const T* from = base + (static_cast<int64_t>(n0 + image) * h + u) * w * pixel;
    uint32_t at = to + (row * columns + column0) * pitch + lane % kVectors * 16;
#pragma unroll 4
    for (int first = 0; first < columns; first += kColumns) {
      const int column = first + column0;
      const bool valid = static_cast<unsigned>(v0 + column) < width;
      if (column < columns) copy_async_streamed(at, valid ? from : in, valid);
      at += kColumns * pitch, from += kColumns * pixel;
    }
  }
}

}  // namespace gradus
