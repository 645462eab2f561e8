// First layers on tensor cores: how a tile's input gets to shared memory, and the forward kernel.
#pragma once

#include "cuda/conv2d_first.cuh"
#include "cuda/device/stream.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {

// Where element e of a tile's input with its halo, one channel, lies from the tile's first row on,
// and in which of its rows; far outside: there is none.
__device__ __forceinline__ void place_first(const FirstConv& p, int e, int64_t& offset, int& row) {
  const int r = static_cast<int>(p.halo_width.quotient(e));
  const int v = e - r * p.tile.halo_columns + p.shift_w;
  const bool inside =
      r < p.tile.halo_rows && static_cast<unsigned>(v) < static_cast<unsigned>(p.in_w);
  offset = r * p.x_strides.h + v * p.x_strides.w;
  row = inside ? r : -(1 << 30);
}

// A tile's input on its way to shared memory, as [row][column][Channels], zeros outside: kHeld
// pixels of a thread wait in registers while the tile before is multiplied, others come at the end.
template <class T, int Channels>
struct FirstInput {
  static constexpr int kHeld = 2, kThreads = 256;
  const FirstConv& p;
  int64_t offsets[kHeld];  // from the tile's first row
  int rows[kHeld];         // far outside: there is no such pixel
  T values[kHeld][Channels];

  __device__ __forceinline__ explicit FirstInput(const FirstConv& problem) : p(problem) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) place_first(p, threadIdx.x + i * kThreads, offsets[i], rows[i]);
  }
  __device__ __forceinline__ void read(T (&to)[Channels], const FirstTile& tile, int64_t offset,
                                       int row) const {
    const int u0 = tile.i0 * p.scale_h + p.shift_h;
    const bool inside = static_cast<unsigned>(u0 + row) < static_cast<unsigned>(p.in_h);
    const T* from =
        static_cast<const T*>(p.x) + tile.n * p.x_strides.n + u0 * p.x_strides.h + offset;
#pragma unroll
    for (int c = 0; c < Channels; ++c, from += p.x_strides.c) to[c] = inside ? *from : T(0.0f);
  }
  static __device__ __forceinline__ void write(T* to, int e, const T (&from)[Channels]) {
#pragma unroll
    for (int c = 0; c < Channels; ++c) to[e * Channels + c] = from[c];
  }

  __device__ __forceinline__ void start(int tile) {
    if (tile >= p.tiles) return;
    const FirstTile at(p, tile);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) read(values[i], at, offsets[i], rows[i]);
  }
  __device__ __forceinline__ void finish(int tile, T* to) const {
    if (tile >= p.tiles) return;
    const int pixels = p.tile.halo_rows * p.tile.halo_columns;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int e = threadIdx.x + i * kThreads;
      if (e < pixels) write(to, e, values[i]);
    }
    const FirstTile at(p, tile);
#pragma unroll 1
    for (int e = threadIdx.x + kHeld * kThreads; e < pixels; e += kThreads) {
      T rest[Channels];
      int64_t offset;
      int row;
      place_first(p, e, offset, row);
      read(rest, at, offset, row);
      write(to, e, rest);
    }
  }
};

// Where each pixel of a tile begins in the tile of x.
template <int Channels>
__device__ __forceinline__ void fill_first_table(const FirstConv& p, int* table, int pixels) {
  for (int i = threadIdx.x; i < pixels; i += blockDim.x) {
    const int row = static_cast<int>(p.tile_width.quotient(i)), column = i - row * p.out_w;
    table[i] = (row * p.scale_h * p.tile.halo_columns + column * p.scale_w) * Channels;
  }
}

// Where position (r, s, c) lies from there.
template <int Channels>
__device__ __forceinline__ int first_offset(const FirstConv& p, int position) {
  const int tap = position / Channels, r = tap / p.taps_w, s = tap - r * p.taps_w;
  return (r * p.step_h * p.tile.halo_columns + s * p.step_w) * Channels + position - tap * Channels;
}

// Words between the weights of channels in shared memory: Steps * 32 bytes of positions, and one.
template <int Steps>
inline constexpr int kFirstPitch = Steps * 8 + 1;

// The weights of `columns` channels from column0 on as [channel][r, s, c], zeros beyond; a warp has
// a channel, a lane a position.
template <class T, int Channels, int Steps>
__device__ __forceinline__ void fill_first_weights(const FirstConv& p, uint32_t* to, int column0,
                                                   int columns) {
  const int position = threadIdx.x % 32, tap = position / Channels, c = position - tap * Channels;
  const int taps = p.taps_h * p.taps_w;
  const T* const from = static_cast<const T*>(p.weights) + c * taps + tap;
  for (int k = threadIdx.x / 32; k < columns; k += 8) {
    const bool exists = tap < taps && column0 + k < p.k;
    const T value = exists ? from[static_cast<int64_t>(column0 + k) * taps * Channels] : T(0.0f);
    if (position >= Steps * 32 / static_cast<int>(sizeof(T))) continue;
    uint32_t* const row = to + k * kFirstPitch<Steps>;
    if constexpr (sizeof(T) == 4) {
      row[position] = round_to_tf32(__float_as_uint(value));
    } else {
      reinterpret_cast<T*>(row)[position] = value;
    }
  }
}

// A warp's N * 8 channels. Product column j * 8 + g is the channel whose store it joins: see
// weight_row().
template <class T, int Channels, int N, int Steps>
struct FirstFilters {
  static constexpr int kV = kFullPack<T>, kPerWord = 4 / static_cast<int>(sizeof(T));
  uint32_t words[Steps][N][2];
  float bias[N][2];
  int offsets[Steps][2][kPerWord];  // of the positions that the lane multiplies; -1: none

  __device__ __forceinline__ FirstFilters(const FirstConv& p, const uint32_t* weights, int k0) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const auto channel = [](int j, int pair) {
      return j / (kV / 2) * 4 * kV + pair * kV + j % (kV / 2) * 2;
    };
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const uint32_t* at = weights + (channel(j, g / 2) + g % 2) * kFirstPitch<Steps> + t;
#pragma unroll
      for (int step = 0; step < Steps; ++step) {
        words[step][j][0] = at[step * 8], words[step][j][1] = at[step * 8 + 4];
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int k = k0 + channel(j, t) + e;
        bias[j][e] = p.bias != nullptr && k < p.k ? static_cast<const float*>(p.bias)[k] : 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < Steps * 2 * kPerWord; ++i) {
      const int position = (i / kPerWord * 4 + t) * kPerWord + i % kPerWord;
      const bool inside = position < p.taps_h * p.taps_w * Channels;
      offsets[i / kPerWord / 2][i / kPerWord % 2][i % kPerWord] =
          inside ? first_offset<Channels>(p, position) : -1;
    }
  }

  // c of 16 pixels, whose windows begin at rows[0] (pixel g) and rows[1] (pixel g + 8). Rounded:
  // f32 is TF32 already.
  template <bool Rounded = false>
  __device__ __forceinline__ void multiply(float (&c)[N][4], const T* const (&rows)[2]) const {
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
          const uint32_t bits = __float_as_uint(value(0));
          a[e] = Rounded ? bits : round_to_tf32(bits);
        } else {
          a[e] = value(0).bits | static_cast<uint32_t>(value(1).bits) << 16;
        }
      }
#pragma unroll
      for (int j = 0; j < N; ++j) MmaStep<T>::run(c[j], a, words[step][j][0], words[step][j][1]);
    }
  }

  // Adds the bias and writes the pixel of one half of c; `columns`: the channels that exist.
  __device__ __forceinline__ void store(T* out, const float (&c)[N][4], int half,
                                        int columns) const {
#pragma unroll
    for (int pack = 0; pack < N / (kV / 2); ++pack) {
      const int k = (pack * 4 + threadIdx.x % 4) * kV;
      if (k >= columns) continue;
      float sums[kV];
#pragma unroll
      for (int e = 0; e < kV; ++e) {
        const int j = pack * (kV / 2) + e / 2;
        sums[e] = c[j][half * 2 + e % 2] + bias[j][e % 2];
      }
      store_rounded(out + k, sums);
    }
  }
};

// math    y[m][k] = bias[k] + Σ_{r,s,c} x[m ⊕ (r, s)][c] · weights[k][c, r, s]
// grid    x: as many blocks as run at a time walk through tiles of whole rows; y: tiles of
//         N * 8 * Parts channels k, which the warps share as they do the pixels
// passes  one
// bytes   x once and its halo, y once
// smem    the weights, which then are in registers, the tile's table of pixels and two tiles of x
// needs   at most Steps * 32 bytes of positions (r, s, c)
// order   each output is summed by one warp, in the order (r, s, c)
template <class T, int Channels, int N, int Steps, int Parts>
__global__ void __launch_bounds__(256, 2) conv2d_first_tensor(const __grid_constant__ FirstConv p) {
  constexpr int kColumns = N * 8 * Parts;
  const int pixels = p.tile.rows * p.out_w;
  const int x_size = p.tile.halo_rows * p.tile.halo_columns * Channels;
  uint32_t* const weights = reinterpret_cast<uint32_t*>(dynamic_shared());
  int* const table = reinterpret_cast<int*>(weights + kColumns * kFirstPitch<Steps>);
  T* const x_tiles = reinterpret_cast<T*>(table + pixels);
  start_next_kernel();
  FirstInput<T, Channels> input(p);
  fill_first_table<Channels>(p, table, pixels);
  wait_for_previous_kernel();
  int tile = blockIdx.x;
  input.start(tile);
  fill_first_weights<T, Channels, Steps>(p, weights, blockIdx.y * kColumns, kColumns);
  input.finish(tile, x_tiles);
  __syncthreads();
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, part = warp % Parts * N * 8;
  const int k0 = blockIdx.y * kColumns + part;
  const FirstFilters<T, Channels, N, Steps> filters(p, weights + part * kFirstPitch<Steps>, k0);
  for (int turn = 0; tile < p.tiles; tile += gridDim.x, ++turn) {
    input.start(tile + gridDim.x);
    const T* x = x_tiles + turn % 2 * x_size;
    const FirstTile at(p, tile);
    T* out = static_cast<T*>(p.out) + at.pixel(p) * p.k + k0;
    for (int first = warp / Parts * 16; first < at.valid; first += 8 / Parts * 16) {
      const T* rows[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        rows[half] = x + table[min(first + half * 8 + g, at.valid - 1)];
      }
      float c[N][4] = {};
      filters.multiply(c, rows);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int m = first + half * 8 + g;
        if (m < at.valid) filters.store(out + static_cast<int64_t>(m) * p.k, c, half, p.k - k0);
      }
    }
    // All warps read the other tile before the barrier that ended the last turn.
    input.finish(tile + gridDim.x, x_tiles + (turn + 1) % 2 * x_size);
    __syncthreads();
  }
}

}  // namespace gradus
