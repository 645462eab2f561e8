// The gradient of a first layer's input in plain multiply-adds, for strict f32: dx has a few
// channels, dy many. 3 x 3 filters without stride.
#pragma once

#include "core/dtype.h"
#include "cuda/device/conv2d_halo.cuh"

namespace gradus {

// dx[n, u, v, c] = Σ_{r, s, k} dy[n, u + pad_h - r, v + pad_w - s, k] · weights[k][c, r, s]
struct FirstInputGrad {
  const void* dy = nullptr;       // [images, dy_h, dy_w, k]
  const void* weights = nullptr;  // [k, Channels, 3, 3]
  void* dx = nullptr;             // [images, dx_h, dx_w, Channels]
  int dy_h = 0, dy_w = 0, dx_h = 0, dx_w = 0, k = 0;
  int pad_h = 0, pad_w = 0;
};
struct FirstInputPlain : FirstInputGrad {
  FastDivisor row_tiles, column_tiles;
};

// A block's tile of dx, and dy's channels that shared memory has at a time.
struct FirstInputTile {
  static constexpr int kRows = 16, kColumns = 32, kChunk = 8;
  static constexpr int kHaloRows = kRows + 2, kHaloColumns = kColumns + 2;
  static constexpr int kPitch = kChunk + 4;  // floats of a pixel: eight of them in different banks
  static constexpr int kFloats = kHaloRows * kHaloColumns * kPitch;
};

// All weights as [k / 4][tap][Channels][k % 4], taps turned round, zeros up to a whole chunk.
template <int Channels>
__device__ __forceinline__ void fill_first_input_weights(const FirstInputPlain& p, float* to,
                                                         int padded) {
  for (int e = threadIdx.x; e < padded * Channels * 9; e += blockDim.x) {
    const int k = e / (Channels * 9), rest = e % (Channels * 9), c = rest / 9, tap = 8 - rest % 9;
    to[((k / 4 * 9 + tap) * Channels + c) * 4 + k % 4] =
        k < p.k ? static_cast<const float*>(p.weights)[e] : 0.0f;
  }
}

// Starts copying dy's channels k0 ... of a tile with its halo, zeros outside.
__device__ __forceinline__ void copy_first_input(const FirstInputPlain& p, uint32_t to, int64_t n,
                                                 int u0, int v0, int k0) {
  using Tile = FirstInputTile;
  constexpr int kVectors = Tile::kChunk / 4;
  const int vector = threadIdx.x % kVectors, k = k0 + vector * 4;
  for (int i = threadIdx.x / kVectors; i < Tile::kHaloRows * Tile::kHaloColumns;
       i += blockDim.x / kVectors) {
    const int row = i / Tile::kHaloColumns, column = i - row * Tile::kHaloColumns;
    const int u = u0 + row, v = v0 + column;
    const bool valid = static_cast<unsigned>(u) < static_cast<unsigned>(p.dy_h) &&
                       static_cast<unsigned>(v) < static_cast<unsigned>(p.dy_w) && k < p.k;
    const float* const dy = static_cast<const float*>(p.dy);
    const float* from = dy + ((n * p.dy_h + u) * p.dy_w + v) * p.k + k;
    copy_async_streamed(to + (i * Tile::kPitch + vector * 4) * 4, valid ? from : dy, valid);
  }
}

// Adds four channels k of dy to a thread's 4 rows of dx.
template <int Channels>
__device__ __forceinline__ void multiply_first_input(float (&sums)[4][Channels], const float* dy,
                                                     const float* weights) {
#pragma unroll
  for (int s = 0; s < 3; ++s) {
    Pack<float, 4> w[3][Channels];
#pragma unroll
    for (int r = 0; r < 3; ++r) {
#pragma unroll
      for (int c = 0; c < Channels; ++c) {
        w[r][c] = load_pack<4>(weights + ((r * 3 + s) * Channels + c) * 4);
      }
    }
#pragma unroll
    for (int row = 0; row < 6; ++row) {
      const auto y =
          load_pack<4>(dy + (row * FirstInputTile::kHaloColumns + s) * FirstInputTile::kPitch);
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        if (row < q || row > q + 2) continue;
#pragma unroll
        for (int c = 0; c < Channels; ++c) {
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[q][c] += y[e] * w[row - q][c][e];
        }
      }
    }
  }
}

// math    as at FirstInputGrad
// grid    a block of 4 warps per 16 x 32 pixels of dx; a thread has 4 rows of a column
// passes  one
// bytes   dy once and its halo again, dx once
// smem    all weights, two chunks of a tile of dy
// needs   k a multiple of 4, dy 16-byte aligned
// order   each output is summed by one thread, in the order (k / 4, s, r, k % 4)
template <int Channels>
__global__ void __launch_bounds__(128)
    conv2d_first_input(const __grid_constant__ FirstInputPlain p) {
  using Tile = FirstInputTile;
  const int chunks = (p.k + Tile::kChunk - 1) / Tile::kChunk;
  float* const weights = reinterpret_cast<float*>(dynamic_shared());
  float* const tiles = weights + chunks * Tile::kChunk * 9 * Channels;
  const uint32_t rest = p.column_tiles.quotient(blockIdx.x);
  const int v0 = static_cast<int>(blockIdx.x - rest * p.column_tiles.divisor) * Tile::kColumns;
  const int64_t n = p.row_tiles.quotient(rest);
  const int u0 = static_cast<int>(rest - n * p.row_tiles.divisor) * Tile::kRows;
  const auto copy = [&](int chunk) {
    if (chunk < chunks) {
      // The first pixel of dy is that of a window's last tap.
      copy_first_input(p, shared_address(tiles + chunk % 2 * Tile::kFloats), n, u0 + p.pad_h - 2,
                       v0 + p.pad_w - 2, chunk * Tile::kChunk);
    }
    commit_copies();
  };
  copy(0);
  fill_first_input_weights<Channels>(p, weights, chunks * Tile::kChunk);
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 4;
  float sums[4][Channels] = {};
  for (int chunk = 0; chunk < chunks; ++chunk) {
    copy(chunk + 1);
    wait_copies<1>();
    __syncthreads();
    const float* dy =
        tiles + chunk % 2 * Tile::kFloats + (row * Tile::kHaloColumns + lane) * Tile::kPitch;
    const float* w = weights + chunk * Tile::kChunk * 9 * Channels;
#pragma unroll 1
    for (int i = 0; i < Tile::kChunk / 4; ++i, dy += 4, w += 4 * 9 * Channels) {
      multiply_first_input<Channels>(sums, dy, w);
    }
    __syncthreads();
  }
  if (v0 + lane >= p.dx_w) return;
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const int u = u0 + row + q;
    if (u >= p.dx_h) return;
    float* to = static_cast<float*>(p.dx) + ((n * p.dx_h + u) * p.dx_w + v0 + lane) * Channels;
#pragma unroll
    for (int c = 0; c < Channels; ++c) to[c] = sums[q][c];
  }
}

}  // namespace gradus
