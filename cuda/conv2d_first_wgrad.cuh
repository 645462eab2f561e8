// First layers' weight gradient on tensor cores.
#pragma once

#include "cuda/conv2d_first.cuh"

namespace gradus {

// Bytes between pixels of dy in shared memory, so that a warp's reads lie in different banks.
template <class T, int M>
inline constexpr int first_dy_pitch = M * 16 * static_cast<int>(sizeof(T)) +
                                      (sizeof(T) == 4 ? 32 : 16);

// Adds the products of kPixels pixels from `first` on, of tiles y and x, to a warp's sums.
template <class T, int Channels, int M, int N>
__device__ __forceinline__ void multiply_first(float (&c)[M][N][4], const unsigned char* y,
                                               const T* x, const int* table,
                                               const int (&offsets)[N], int lane, int g, int t,
                                               int first, int valid) {
  constexpr int kPitch = first_dy_pitch<T, M>;
  uint32_t a[M][4];
  // x of one or two neighbouring pixels, 0 beyond the last
  const auto value = [&](int pixel, int offset) {
    return pixel < valid ? x[table[pixel] + offset] : T(0.0f);
  };
  if constexpr (sizeof(T) == 4) {
    const float* a_at = reinterpret_cast<const float*>(y + (first + t) * kPitch) + g;
#pragma unroll
    for (int i = 0; i < M; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        a[i][e] = round_to_tf32(__float_as_uint(a_at[e / 2 * kPitch + i * 16 + e % 2 * 8]));
      }
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const uint32_t b0 = round_to_tf32(__float_as_uint(value(first + t, offsets[j])));
      const uint32_t b1 = round_to_tf32(__float_as_uint(value(first + t + 4, offsets[j])));
#pragma unroll
      for (int i = 0; i < M; ++i) MmaStep<T>::run(c[i][j], a[i], b0, b1);
    }
  } else {
    const uint32_t a_at =
        shared_address(y) + (first + lane / 16 * 8 + lane % 8) * kPitch + lane / 8 % 2 * 16;
#pragma unroll
    for (int i = 0; i < M; ++i) load_matrices_transposed(a[i], a_at + i * 32);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      uint32_t b[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int pixel = first + 2 * t + 8 * e;
        const T low = value(pixel, offsets[j]), high = value(pixel + 1, offsets[j]);
        b[e] = low.bits | static_cast<uint32_t>(high.bits) << 16;
      }
#pragma unroll
      for (int i = 0; i < M; ++i) MmaStep<T>::run(c[i][j], a[i], b[0], b[1]);
    }
  }
}

// Adds the warps' sums in order, and writes those of rows k0 and on.
template <int M, int N, int Warps>
__device__ __forceinline__ void store_first(const FirstConv& p, const float (&c)[M][N][4],
                                            unsigned char* shared, int warp, int g, int t, int k0,
                                            int positions) {
  constexpr int kRow = N * 8;
  float* const sums = reinterpret_cast<float*>(shared);
  for (int from = 0; from < Warps; ++from) {
    if (warp == from) {
#pragma unroll
      for (int i = 0; i < M; ++i) {
#pragma unroll
        for (int j = 0; j < N; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            float& to = sums[(i * 16 + e / 2 * 8 + g) * kRow + j * 8 + 2 * t + e % 2];
            to = from == 0 ? c[i][j][e] : to + c[i][j][e];
          }
        }
      }
    }
    __syncthreads();
  }
  float* out = static_cast<float*>(p.out) + static_cast<int64_t>(blockIdx.x) * p.k * positions;
  const int rows = min(M * 16, p.k - k0);
  for (int e = threadIdx.x; e < rows * positions; e += Warps * 32) {
    out[k0 * positions + e] = sums[e / positions * kRow + e % positions];
  }
}

// math    partials[slice][k][r, s, c] = Σ_{pixels of the slice} dy[pixel][k] · x[pixel ⊕ (r, s)][c]
// grid    x: slices of tiles; y: tiles of M * 16 channels k. The warps share the pixels
// passes  one
// bytes   dy once, x once and its halo
// smem    two tiles of dy and x, the tile's table of pixels
// needs   k a multiple of 16 bytes, dy 16-byte aligned
// order   pixels of a warp in order, then the warps; slices are added by conv2d_reduce
template <class T, int Channels, int M, int N, int Warps>
__global__ void __launch_bounds__(Warps * 32)
    conv2d_first_wgrad(const __grid_constant__ FirstConv p) {
  constexpr int kPitch = first_dy_pitch<T, M>;
  constexpr int kPixels = 32 / static_cast<int>(sizeof(T));
  constexpr int kPerRow = M * 16 / kFullPack<T>;
  const int k0 = blockIdx.y * M * 16;
  const int pixels = p.tile.rows * p.out_w;
  const int padded = (pixels + kPixels - 1) / kPixels * kPixels;
  unsigned char* const shared = dynamic_shared();
  int* const table = reinterpret_cast<int*>(shared + 2 * padded * kPitch);
  const int x_size = p.tile.halo_rows * p.tile.halo_columns * Channels;
  T* const x_tiles = reinterpret_cast<T*>(table + padded);
  for (int i = threadIdx.x; i < padded; i += blockDim.x) {
    const int row = static_cast<int>(p.tile_width.quotient(i)), column = i - row * p.out_w;
    table[i] = (row * p.scale_h * p.tile.halo_columns + column * p.scale_w) * Channels;
  }
  const int begin = blockIdx.x * p.tiles_per_slice;
  const int end = min(begin + p.tiles_per_slice, p.tiles);
  const auto valid_pixels = [&](int tile) {
    return min(p.tile.rows, p.out_h - tile % p.row_tiles * p.tile.rows) * p.out_w;
  };
  const auto load = [&](int tile, int stage) {
    if (tile < end) {
      const uint32_t y_at = shared_address(shared) + stage * padded * kPitch;
      const int valid = valid_pixels(tile);
      const T* dy =
          static_cast<const T*>(p.dy) +
          (static_cast<int64_t>(tile / p.row_tiles) * p.out_h + tile % p.row_tiles * p.tile.rows) *
              p.out_w * p.k;
      for (int e = threadIdx.x; e < padded * kPerRow; e += Warps * 32) {
        const int pixel = e / kPerRow, k = k0 + e % kPerRow * kFullPack<T>;
        const bool inside = pixel < valid && k < p.k;
        copy_async_streamed(y_at + pixel * kPitch + e % kPerRow * 16,
                            inside ? dy + pixel * p.k + k : dy, inside);
      }
      load_first<T, Channels>(p, x_tiles + stage * x_size, tile);
    }
    commit_copies();
  };

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int positions = p.taps_h * p.taps_w * Channels;
  int offsets[N];
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const int position = min(j * 8 + g, positions - 1), tap = position / Channels;
    const int r = tap / p.taps_w, s = tap - r * p.taps_w;
    offsets[j] = (r * p.step_h * p.tile.halo_columns + s * p.step_w) * Channels +
                 (position - tap * Channels);
  }
  float c[M][N][4] = {};
  load(begin, 0);
  for (int tile = begin, turn = 0; tile < end; ++tile, ++turn) {
    load(tile + 1, (turn + 1) % 2);
    wait_copies<1>();
    __syncthreads();
    const unsigned char* y = shared + turn % 2 * padded * kPitch;
    const T* x = x_tiles + turn % 2 * x_size;
    const int valid = valid_pixels(tile);
    for (int first = warp * kPixels; first < valid; first += Warps * kPixels) {
      multiply_first<T, Channels, M, N>(c, y, x, table, offsets, lane, g, t, first, valid);
    }
    __syncthreads();
  }

  store_first<M, N, Warps>(p, c, shared, warp, g, t, k0, positions);
}

}  // namespace gradus
