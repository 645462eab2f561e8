// First layers of one channel on tensor cores, forward: a block has one tile, up to whole images.
#pragma once

#include "cuda/conv2d_first_tensor.cuh"

namespace gradus {

// The tile's input, one channel, rounded to TF32 if it is f32. meanwhile() runs while the first
// values are on their way.
template <class T, class Meanwhile>
__device__ __forceinline__ void load_first_single(const FirstConv& p, const FirstTile& tile, T* to,
                                                  const Meanwhile& meanwhile) {
  constexpr int kAhead = 4, kThreads = 256;
  const int u0 = tile.i0 * p.scale_h + p.shift_h, pixels = p.tile.halo_rows * p.tile.halo_columns;
  const T* const from = static_cast<const T*>(p.x) + tile.n * p.x_strides.n + u0 * p.x_strides.h;
#pragma unroll 1
  for (int first = 0; first < pixels; first += kAhead * kThreads) {
    T values[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      int64_t offset;
      int row;
      place_first(p, first + threadIdx.x + i * kThreads, offset, row);
      const bool inside = static_cast<unsigned>(u0 + row) < static_cast<unsigned>(p.in_h);
      values[i] = inside ? from[offset] : T(0.0f);
    }
    if (first == 0) meanwhile();
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int e = first + threadIdx.x + i * kThreads;
      if constexpr (sizeof(T) == 4) {
        values[i] = __uint_as_float(round_to_tf32(__float_as_uint(values[i])));
      }
      if (e < pixels) to[e] = values[i];
    }
  }
}

// math    y[m][k] = bias[k] + Σ_{r,s} x[m ⊕ (r, s)] · weights[k][r, s]
// grid    x: tiles of whole rows; y: tiles of 32 channels k. Warps share the pixels
// passes  one
// bytes   x once and its halo, y once
// smem    the weights, which then are in registers, the tile's table of pixels and its x
// needs   at most Steps * 32 bytes of positions (r, s)
// order   each output is summed by one warp, in the order (r, s)
template <class T, int Steps>
__global__ void __launch_bounds__(256, 4) conv2d_first_single(const __grid_constant__ FirstConv p) {
  constexpr int N = 4, kColumns = N * 8;
  const int pixels = p.tile.rows * p.out_w, k0 = blockIdx.y * kColumns;
  uint32_t* const weights = reinterpret_cast<uint32_t*>(dynamic_shared());
  int* const table = reinterpret_cast<int*>(weights + kColumns * kFirstPitch<Steps>);
  T* const x = reinterpret_cast<T*>(table + pixels);
  start_next_kernel();
  fill_first_table<1>(p, table, pixels);
  const FirstTile at(p, blockIdx.x);
  wait_for_previous_kernel();
  load_first_single<T>(p, at, x,
                       [&] { fill_first_weights<T, 1, Steps>(p, weights, k0, kColumns); });
  __syncthreads();
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
  const FirstFilters<T, 1, N, Steps> filters(p, weights, k0);
  T* const out = static_cast<T*>(p.out) + at.pixel(p) * p.k + k0;
  for (int first = warp * 16; first < at.valid; first += 8 * 16) {
    const T* rows[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      rows[half] = x + table[min(first + half * 8 + g, at.valid - 1)];
    }
    float c[N][4] = {};
    filters.template multiply<true>(c, rows);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int m = first + half * 8 + g;
      if (m < at.valid) filters.store(out + static_cast<int64_t>(m) * p.k, c, half, p.k - k0);
    }
  }
}

}  // namespace gradus
