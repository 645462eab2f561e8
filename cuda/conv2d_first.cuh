// First layers: conv2d of inputs of a few channels, bound by the larger tensor y or dy, which is
// channels-last. x has any layout.
#pragma once

#include "core/dtype.h"
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
  int images = 0, in_h = 0, in_w = 0, out_h = 0, out_w = 0, k = 0;
  int scale_h = 1, scale_w = 1, shift_h = 0, shift_w = 0, step_h = 1, step_w = 1;
  int taps_h = 1, taps_w = 1;
  HaloTile tile;  // one image, whole rows
  FastDivisor tile_width, halo_width;
  int row_tiles = 1, tiles = 1, tiles_per_slice = 1;
};

// The tile's input with its halo as [row][column][Channels], zeros outside.
template <class T, int Channels, class To>
__device__ __forceinline__ void load_first(const FirstConv& p, To* to, int tile) {
  const int64_t n = tile / p.row_tiles;
  const int u0 = tile % p.row_tiles * p.tile.rows * p.scale_h + p.shift_h;
  const T* from = static_cast<const T*>(p.x) + n * p.x_strides.n;
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
    const int i0 = tile % p.row_tiles * p.tile.rows;
    const int pixels = min(p.tile.rows, p.out_h - i0) * p.out_w;
    T* out = static_cast<T*>(p.out) +
             (static_cast<int64_t>(tile / p.row_tiles) * p.out_h + i0) * p.out_w * p.k + k0;
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

// Multiplies 16 pixels, whose windows begin at rows[0] (pixel g) and rows[1] (pixel g + 8).
template <class T, int N, int Steps>
__device__ __forceinline__ void multiply_first_pixels(
    float (&c)[N][4], const T* const (&rows)[2],
    const int (&offsets)[Steps][2][4 / static_cast<int>(sizeof(T))],
    const uint32_t (&b)[Steps][N][2]) {
#pragma unroll
  for (int step = 0; step < Steps; ++step) {
    uint32_t a[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const auto value = [&](int i) {
        const int offset = offsets[step][e / 2][i];
        return offset >= 0 ? rows[e % 2][offset] : T(0.0f);
      };
      if constexpr (sizeof(T) == 4) {
        a[e] = round_to_tf32(__float_as_uint(value(0)));
      } else {
        a[e] = value(0).bits | static_cast<uint32_t>(value(1).bits) << 16;
      }
    }
#pragma unroll
    for (int j = 0; j < N; ++j) MmaStep<T>::run(c[j], a, b[step][j][0], b[step][j][1]);
  }
}

// Adds the bias to 16 pixels from `first` on and writes those before `valid`.
template <class T, int N>
__device__ __forceinline__ void store_first_pixels(const FirstConv& p, const float (&c)[N][4],
                                                   T* out, const float* bias, int g, int t, int k0,
                                                   int first, int valid) {
  constexpr int kV = kFullPack<T>;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int m = first + half * 8 + g;
    if (m >= valid) continue;
#pragma unroll
    for (int pack = 0; pack < N / (kV / 2); ++pack) {
      const int k = k0 + pack * 4 * kV + t * kV;
      if (k >= p.k) continue;
      float sums[kV];
#pragma unroll
      for (int e = 0; e < kV; ++e) {
        sums[e] = c[pack * (kV / 2) + e / 2][half * 2 + e % 2];
        if (bias != nullptr) sums[e] += bias[k + e];
      }
      store_pack(out + static_cast<int64_t>(m) * p.k + k, narrow_pack<T>(sums));
    }
  }
}

// math    y[m][k] = bias[k] + Σ_{r,s,c} x[m ⊕ (r, s)][c] · weights[k][c, r, s]
// grid    x: blocks walk through tiles of whole rows; y: tiles of N * 8 channels k
// passes  one
// bytes   x once and its halo, y once
// smem    the tile of x, the tile's table of pixels; the weights are in registers
// needs   at most Steps * 32 bytes of positions (r, s, c)
// order   each output is summed by one warp, in the order (r, s, c)
template <class T, int Channels, int N, int Steps>
__global__ void __launch_bounds__(256) conv2d_first_tensor(const __grid_constant__ FirstConv p) {
  constexpr int kV = kFullPack<T>, kPerWord = 4 / static_cast<int>(sizeof(T));
  const int pixels = p.tile.rows * p.out_w;
  int* const table = reinterpret_cast<int*>(dynamic_shared());
  T* const x = reinterpret_cast<T*>(table + pixels);
  for (int i = threadIdx.x; i < pixels; i += 256) {
    const int row = static_cast<int>(p.tile_width.quotient(i)), column = i - row * p.out_w;
    table[i] = (row * p.scale_h * p.tile.halo_columns + column * p.scale_w) * Channels;
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int positions = p.taps_h * p.taps_w * Channels, k0 = blockIdx.y * N * 8;
  // Words t of the first and the second 16 bytes of each step: where their positions lie.
  int offsets[Steps][2][kPerWord];
  uint32_t b[Steps][N][2];
#pragma unroll
  for (int step = 0; step < Steps; ++step) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float weights[N][kPerWord];
#pragma unroll
      for (int e = 0; e < kPerWord; ++e) {
        const int position = ((2 * step + half) * 4 + t) * kPerWord + e;
        const int tap = position / Channels, c = position - tap * Channels;
        const int r = tap / p.taps_w, s = tap - r * p.taps_w;
        const bool inside = position < positions;
        offsets[step][half][e] =
            inside ? (r * p.step_h * p.tile.halo_columns + s * p.step_w) * Channels + c : -1;
#pragma unroll
        for (int j = 0; j < N; ++j) {
          // Product column j * 8 + g is the channel whose store it joins: see weight_row().
          const int column = j / (kV / 2) * 4 * kV + g / 2 * kV + j % (kV / 2) * 2 + g % 2;
          const int k = k0 + column;
          weights[j][e] =
              inside && k < p.k
                  ? static_cast<float>(static_cast<const T*>(
                        p.weights)[(static_cast<int64_t>(k) * Channels + c) * p.taps_h * p.taps_w +
                                   tap])
                  : 0.0f;
        }
      }
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if constexpr (sizeof(T) == 4) {
          b[step][j][half] = round_to_tf32(__float_as_uint(weights[j][0]));
        } else {
          b[step][j][half] = T(weights[j][0]).bits | static_cast<uint32_t>(T(weights[j][1]).bits)
                                                         << 16;
        }
      }
    }
  }
  const float* bias = static_cast<const float*>(p.bias);
  for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    __syncthreads();
    load_first<T, Channels>(p, x, tile);
    __syncthreads();
    const int i0 = tile % p.row_tiles * p.tile.rows;
    const int valid = min(p.tile.rows, p.out_h - i0) * p.out_w;
    T* out = static_cast<T*>(p.out) +
             (static_cast<int64_t>(tile / p.row_tiles) * p.out_h + i0) * p.out_w * p.k;
    for (int first = warp * 16; first < valid; first += 8 * 16) {
      const T* rows[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        rows[half] = x + table[min(first + half * 8 + g, valid - 1)];
      }
      float c[N][4] = {};
      multiply_first_pixels<T, N, Steps>(c, rows, offsets, b);
      store_first_pixels<T, N>(p, c, out, bias, g, t, k0, first, valid);
    }
  }
}

}  // namespace gradus
