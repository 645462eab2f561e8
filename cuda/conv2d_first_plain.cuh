// First layers' weight gradient in plain multiply-adds, for strict f32.
#pragma once

#include "cuda/conv2d_first_tiles.cuh"

namespace gradus {

// A thread's channels k, lane * 4 and 32 + lane * 4 and the next three, by up to 9 positions
// (r, s, c), of every so many pixels.
template <int Channels>
struct FirstPlainSums {
  static constexpr int kColumns = 9, kLanes = 8, kUnits = 256 / kLanes;
  float c[kColumns][8] = {};
  int offsets[kColumns];
  int lane, groups, group, pixel, pixels;  // of positions; the first pixel, and how many are shared

  __device__ __forceinline__ explicit FirstPlainSums(const FirstConv& p) {
    const int positions = p.taps_h * p.taps_w * Channels, unit = threadIdx.x / kLanes;
    lane = threadIdx.x % kLanes;
    groups = (positions + kColumns - 1) / kColumns;
    group = unit % groups, pixel = unit / groups, pixels = kUnits / groups;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      offsets[i] = first_offset<Channels>(p, min(group * kColumns + i, positions - 1));
    }
  }

  // Adds a tile's pixels; a unit that would have none of its own adds nothing.
  __device__ __forceinline__ void add(const unsigned char* y, const float* x, const int* table,
                                      int valid) {
    if (pixel >= pixels) return;
    for (int m = pixel; m < valid; m += pixels) {
      const int place = FirstDyTile<float, 64>::place(m, lane);
      const float* const dy = reinterpret_cast<const float*>(y + place);
      const auto low = load_pack<4>(dy), high = load_pack<4>(dy + 32);
      const float* const from = x + table[m];
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const float value = from[offsets[i]];
#pragma unroll
        for (int e = 0; e < 4; ++e) c[i][e] += low[e] * value, c[i][4 + e] += high[e] * value;
      }
    }
  }

  // Leaves the sums at `to`: [pixel][group][position][64 channels].
  __device__ __forceinline__ void leave(float* to) const {
    if (pixel >= pixels) return;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      float* const row = to + ((pixel * groups + group) * kColumns + i) * 64 + lane * 4;
      store_pack(row, Pack<float, 4>{c[i][0], c[i][1], c[i][2], c[i][3]});
      store_pack(row + 32, Pack<float, 4>{c[i][4], c[i][5], c[i][6], c[i][7]});
    }
  }
};

// math    partials[slice][k][r, s, c] = Σ_{pixels of the slice} dy[pixel][k] · x[pixel ⊕ (r, s)][c]
//         Bias: bias_sums[slice][k] = Σ dy[pixel][k]
// grid    x: a block per slice; y: tiles of 64 channels k. Threads share channels, positions and
//         pixels
// passes  one
// bytes   dy once, x once and its halo
// smem    two tiles of dy and x, the tile's table of pixels; afterwards the threads' sums
// needs   k a multiple of 4, dy 16-byte aligned, at most 288 positions
// order   pixels of a thread in order, then the threads; slices are added by conv2d_reduce
template <int Channels, bool Bias>
__global__ void __launch_bounds__(256, 2)
    conv2d_first_wgrad_plain(const __grid_constant__ FirstConv p) {
  const int k0 = blockIdx.y * 64;
  using Tiles = FirstWgradTiles<float, Channels, 64>;
  Tiles tiles(p, k0);
  tiles.start();
  FirstPlainSums<Channels> sums(p);
  [[maybe_unused]] BiasSums<float, 64> bias;
  tiles.walk([&](const unsigned char* dy, const float* x, int valid, int) {
    if constexpr (Bias) bias.take(dy, valid, Tiles::Dy::place);
    sums.add(dy, x, tiles.table, valid);
  });

  float* const mail = reinterpret_cast<float*>(tiles.dy);
  if constexpr (Bias) {
    bias.store(mail, p.bias_sums + static_cast<int64_t>(blockIdx.x) * p.k + k0, p.k - k0);
  }
  sums.leave(mail);
  __syncthreads();
  const int positions = static_cast<int>(p.positions.divisor);
  float* const out =
      static_cast<float*>(p.out) + (static_cast<int64_t>(blockIdx.x) * p.k + k0) * positions;
  for (int e = threadIdx.x; e < min(64, p.k - k0) * positions; e += 256) {
    const int row = static_cast<int>(p.positions.quotient(e)), position = e - row * positions;
    float sum = 0;
    for (int i = 0; i < sums.pixels; ++i) {
      sum += mail[(i * sums.groups * FirstPlainSums<Channels>::kColumns + position) * 64 + row];
    }
    out[e] = sum;
  }
}

}  // namespace gradus
