// First layers: conv2d of inputs of a few channels, bound by the larger tensor y or dy, which is
// channels-last. x has any layout.
#pragma once

#include "core/dtype.h"
#include "cuda/device/conv2d_bias_sums.cuh"
#include "cuda/device/conv2d_halo.cuh"
#include "cuda/device/image_strides.cuh"

namespace gradus {

struct FirstConv {
  const void* x = nullptr;
  ImageStrides x_strides;
  const void* weights = nullptr;  // [k, Channels, R, S]
  const void* bias = nullptr;     // [k], acc; or null
  const void* dy = nullptr;       // [images, out_h, out_w, k]
  void* out = nullptr;            // y, like dy; or partials [slices, k, positions], acc
  float* bias_sums = nullptr;     // [slices, k]; or null
  int images = 0, in_h = 0, in_w = 0, out_h = 0, out_w = 0, k = 0;
  int scale_h = 1, scale_w = 1, shift_h = 0, shift_w = 0, step_h = 1, step_w = 1;
  int taps_h = 1, taps_w = 1;
  HaloTile tile;  // one image, whole rows
  FastDivisor tile_width, halo_width;
  FastDivisor row_tiles;  // of an image
  FastDivisor positions;  // (r, s, c)
  int window = 1;         // elements of a tile of x from the first of a pixel's window to the last
  int tiles = 1;          // blocks along x take every so many-th one
};

// A tile's image, its first row of outputs, and how many of its pixels exist: its first ones.
struct FirstTile {
  int64_t n;
  int i0, valid;
  __device__ __forceinline__ FirstTile(const FirstConv& p, int tile) {
    const int image = static_cast<int>(p.row_tiles.quotient(tile));
    n = image;
    i0 = (tile - image * static_cast<int>(p.row_tiles.divisor)) * p.tile.rows;
    valid = min(p.tile.rows, p.out_h - i0) * p.out_w;
  }
  // Its first pixel in a tensor like y.
  __device__ __forceinline__ int64_t pixel(const FirstConv& p) const {
    return (n * p.out_h + i0) * p.out_w;
  }
};

// The tile's input with its halo as [row][column][Channels], zeros outside.
template <class T, int Channels, class To>
__device__ __forceinline__ void load_first(const FirstConv& p, To* to, int tile) {
  const FirstTile at(p, tile);
  const int u0 = at.i0 * p.scale_h + p.shift_h;
  const T* from = static_cast<const T*>(p.x) + at.n * p.x_strides.n;
  for (int e = threadIdx.x; e < p.tile.halo_rows * p.tile.halo_columns; e += blockDim.x) {
    const int row = static_cast<int>(p.halo_width.quotient(e));
    const int u = u0 + row, v = e - row * p.tile.halo_columns + p.shift_w;
    const bool inside = static_cast<unsigned>(u) < static_cast<unsigned>(p.in_h) &&
                        static_cast<unsigned>(v) < static_cast<unsigned>(p.in_w);
#pragma unroll
    for (int c = 0; c < Channels; ++c) {
      to[e * Channels + c] = static_cast<To>(
          inside ? from[c * p.x_strides.c + u * p.x_strides.h + v * p.x_strides.w] : T(0.0f));
    }
  }
}

// math    y[m][k] = bias[k] + Σ_{r,s,c} x[m ⊕ (r, s)][c] · weights[k][c, r, s]
// grid    blocks walk through tiles of whole rows; a thread has Pixels pixels, 16 bytes of channels
// passes  one
// bytes   x once and its halo, y once
// smem    the tile of x, and the weights as [r, s, c][k], both in acc
// order   each output is summed by one thread, in the order (r, s, c)
template <class T, int Channels, int Pixels>
__global__ void __launch_bounds__(256) conv2d_first_forward(const __grid_constant__ FirstConv p) {
  using Acc = acc_t<T>;
  constexpr int kV = kFullPack<T>;
  Acc* const weights = reinterpret_cast<Acc*>(dynamic_shared());
  const int taps = p.taps_h * p.taps_w;
  Acc* const x = weights + taps * Channels * p.k;
  for (int e = threadIdx.x; e < taps * Channels * p.k; e += 256) {
    const int k = e / (taps * Channels), c = e / taps % Channels, tap = e % taps;
    weights[(tap * Channels + c) * p.k + k] = static_cast<Acc>(static_cast<const T*>(p.weights)[e]);
  }
  const int lanes = p.k / kV, k0 = threadIdx.x % lanes * kV, row = threadIdx.x / lanes;
  const int rows = 256 / lanes;
  Acc bias[kV] = {};
  if (p.bias != nullptr) {
#pragma unroll
    for (int e = 0; e < kV; ++e) bias[e] = static_cast<const Acc*>(p.bias)[k0 + e];
  }
  for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    __syncthreads();
    load_first<T, Channels>(p, x, tile);
    __syncthreads();
    const FirstTile at_tile(p, tile);
    const int pixels = at_tile.valid;
    T* out = static_cast<T*>(p.out) + at_tile.pixel(p) * p.k + k0;
    for (int m0 = row; m0 < pixels && row < rows; m0 += rows * Pixels) {
      const Acc* at[Pixels];
      Acc sums[Pixels][kV];
#pragma unroll
      for (int q = 0; q < Pixels; ++q) {
        const int m = min(m0 + q * rows, pixels - 1);
        const int i = static_cast<int>(p.tile_width.quotient(m)), j = m - i * p.out_w;
        at[q] = x + (i * p.scale_h * p.tile.halo_columns + j * p.scale_w) * Channels;
#pragma unroll
        for (int e = 0; e < kV; ++e) sums[q][e] = bias[e];
      }
      const Acc* w = weights + k0;
      for (int r = 0; r < p.taps_h; ++r) {
        const int shift = r * p.step_h * p.tile.halo_columns * Channels;
#pragma unroll 3
        for (int s = 0; s < p.taps_w; ++s) {
#pragma unroll
          for (int c = 0; c < Channels; ++c, w += p.k) {
            Pack<Acc, kFullPack<Acc>> factors[kV / kFullPack<Acc>];
#pragma unroll
            for (int e = 0; e < kV / kFullPack<Acc>; ++e) {
              factors[e] = load_pack<kFullPack<Acc>>(w + e * kFullPack<Acc>);
            }
#pragma unroll
            for (int q = 0; q < Pixels; ++q) {
              const Acc value = at[q][shift + s * p.step_w * Channels + c];
#pragma unroll
              for (int e = 0; e < kV; ++e) {
                sums[q][e] += value * factors[e / kFullPack<Acc>][e % kFullPack<Acc>];
              }
            }
          }
        }
      }
#pragma unroll
      for (int q = 0; q < Pixels; ++q) {
        const int m = m0 + q * rows;
        if (m < pixels) store_pack(out + static_cast<int64_t>(m) * p.k, narrow_pack<T>(sums[q]));
      }
    }
  }
}

}  // namespace gradus
