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

// Starts copying `rows` rows of `columns` pixels, from row u0, column v0 of image n0 on, to
// shared memory, where pixels are `pitch` bytes apart; rows of further images follow every
// `rows_per_image`.
template <class T, int Steps>
__device__ __forceinline__ void load_halo(uint32_t to, int pitch, const T* in, int images, int h,
                                          int w, int groups, int group, int channels, int rows,
                                          int rows_per_image, int columns, int n0, int u0, int v0) {
  constexpr unsigned kVectors = Steps * 2;
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const int pixel = groups * channels;
  for (int row = warp; row < rows; row += warps) {
    const int image = row / rows_per_image, u = u0 + row - image * rows_per_image;
    const bool inside = n0 + image < images && static_cast<unsigned>(u) < static_cast<unsigned>(h);
    const unsigned width = inside ? w : 0;
    const T* from = in + ((static_cast<int64_t>(n0 + image) * h + u) * w + v0) * pixel +
                    static_cast<int64_t>(group) * channels;
    const uint32_t at = to + row * columns * pitch;
    for (unsigned x = lane; x < columns * kVectors; x += 32) {
      const int column = x / kVectors, vector = x % kVectors;
      const bool valid =
          static_cast<unsigned>(v0 + column) < width && vector * kFullPack<T> < channels;
      copy_async_streamed(at + column * pitch + vector * 16,
                          valid ? from + (column * pixel + vector * kFullPack<T>) : in, valid);
    }
  }
}

}  // namespace gradus
