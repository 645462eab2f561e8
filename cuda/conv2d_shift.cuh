// conv2d forward and backward to the input with a stride of 1 and few channels, by Hopper's
// warpgroup-wide products on tiles that all taps share: the rows of a tile lie in shared memory one
// after the other, each with its halo, so that what tap (r, s) reads of output position p is
// position p + r·pitch + s, and a tap an operand that starts so many positions later.
#pragma once

#include <cuda.h>

#include "cuda/device/conv2d_stage.cuh"
#include "cuda/device/tma.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {

struct Shift {
  CUtensorMap in;               // [n, h, w, channels], boxes of box_rows x pitch pixels x RowBytes
  CUtensorMap weights;          // [columns, taps, channels], boxes of 64 columns x RowBytes
  CUtensorMap out;              // [n, h, w, columns], boxes of rows x pitch pixels x 128 bytes
  float* direct = nullptr;      // f32: `out` itself, for more than 32 columns
  const float* bias = nullptr;  // [columns], or null
  int channels = 0, columns = 0, slices = 1;
  int taps_h = 1, taps_w = 1, step_h = 1, step_w = 1, shift_h = 0, shift_w = 0;
  int out_h = 1, out_w = 1;
  int rows = 1, pitch = 1, box_rows = 1, row_tiles = 1, tiles = 0;
  int weight_bytes = 0, stage_bytes = 0, stages = 2;
};

inline constexpr int kShiftThreads = 384;

// Shared memory: the weights, a box per slice of channels and tap, then stages of a tile's slice.
// Two warpgroups multiply, whole tiles in turn; a third one's threads copy.
template <class T, int RowBytes, int Positions>
struct ShiftTiles {
  static constexpr int kWeightBox = 64 * RowBytes;
  static constexpr int kChannels = RowBytes / static_cast<int>(sizeof(T));

  const Shift& p;
  uint32_t base;  // at a multiple of 1024
  int stage = 0;
  uint32_t parity = 0;
  float bias[2] = {};  // of this thread's two columns

  __device__ __forceinline__ explicit ShiftTiles(const Shift& problem)
      : p(problem), base((shared_address(dynamic_shared()) + 1023) / 1024 * 1024) {}

  __device__ __forceinline__ SharedBarrier full() const { return barrier(2 * stage); }
  __device__ __forceinline__ SharedBarrier empty() const { return barrier(2 * stage + 1); }
  // The weights of a row of taps.
  __device__ __forceinline__ SharedBarrier weights_full(int row) const {
    return barrier(2 * p.stages + row);
  }
  __device__ __forceinline__ uint32_t at() const {
    return base + p.weight_bytes + stage * p.stage_bytes;
  }
  __device__ __forceinline__ void open() {
    if (threadIdx.x == 0) {
      for (stage = 0; stage < p.stages; ++stage) full().open(1), empty().open(128);
      for (int row = 0; row < p.slices * p.taps_h; ++row) weights_full(row).open(1);
      publish_barriers();
    }
    stage = 0;
    __syncthreads();
  }
  __device__ __forceinline__ void advance(int by = 1) {
    stage += by;
    if (stage >= p.stages) stage -= p.stages, parity ^= 1;
  }

  // A copying thread: the weights, which the previous kernel writes.
  __device__ __forceinline__ void copy_weights() const {
    wait_for_previous_kernel();
    uint32_t to = base;
    for (int row = 0; row < p.slices * p.taps_h; ++row) {
      const SharedBarrier arrived = weights_full(row);
      const int slice = row / p.taps_h, tap = row % p.taps_h * p.taps_w;
      arrived.arrive_expecting(p.taps_w * kWeightBox);
      for (int s = 0; s < p.taps_w; ++s, to += kWeightBox) {
        copy_box(to, p.weights, arrived, (tap + s) * p.channels + slice * kChannels, 0);
      }
    }
  }

  // Another one: the tiles. What was there before the previous kernel started can be read at once.
  __device__ __forceinline__ void copy_tiles() {
    for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
      const int n = tile / p.row_tiles, row = tile % p.row_tiles * p.rows;
      for (int slice = 0; slice < p.slices; ++slice, advance()) {
        empty().wait(parity ^ 1);
        full().arrive_expecting(p.pitch * p.box_rows * RowBytes);
        copy_image(at(), p.in, full(), slice * kChannels, p.shift_w, row + p.shift_h, n);
      }
    }
  }

  __device__ __forceinline__ void load_bias() {
    const int t = threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = t / 32 * 16 + t % 32 / 4 + 8 * i;
      if (p.bias != nullptr && column < p.columns) bias[i] = p.bias[column];
    }
  }

  // A warpgroup: the products of a tile. Leaves the last slice's stage to it. The groups wait for
  // stages in turn: of a stage that was not yet filled the time before, parity cannot tell the
  // next time from the one before that.
  __device__ __forceinline__ void multiply(float (&c)[Positions / 2], bool first, bool last) {
    if (!first) await_turn();
    uint32_t w = base;
    for (int slice = 0; slice < p.slices; ++slice) {
      if (slice > 0) empty().arrive(), advance();
      full().template wait<false>(parity);
      if (slice == p.slices - 1 && !last) pass_turn();
      uint32_t row = at();
#pragma unroll 1
      for (int r = 0; r < p.taps_h; ++r, row += p.step_h * p.pitch * RowBytes) {
        weights_full(slice * p.taps_h + r).template wait<false>(0);
        uint32_t x = row;
#pragma unroll 1
        for (int s = 0; s < p.taps_w; ++s, x += p.step_w * RowBytes, w += kWeightBox) {
          const uint64_t a = describe_rows<RowBytes>(w), b = describe_rows<RowBytes>(x);
          begin_products();
#pragma unroll
          for (int k = 0; k < RowBytes / 32; ++k) {
            multiply_group<T, Positions, Operand::flat>(c, a + 2 * k, b + 2 * k,
                                                        slice > 0 || r > 0 || s > 0 || k > 0);
          }
          commit_products();
        }
      }
      wait_products<0>();
    }
  }

  // A warpgroup: its sums to the rows from row0 on of image n, through the place of the tile's last
  // slice, 128 bytes of a position. The copy engine leaves out positions past the end of a row,
  // rows past the image and columns that do not exist. Then the stage is free; it is so before
  // where results are longer, which would wait for the copy engine in between.
  __device__ __forceinline__ void store(const float (&c)[Positions / 2], int n, int row0) const {
    if constexpr (sizeof(T) == 4) {
      if (p.columns > 32) {
        empty().arrive();
        return store_floats(c, n, row0);
      }
    }
    const int t = threadIdx.x % 128;
    sync_group();
    if constexpr (sizeof(T) == 2) {
      stage_halves<T, Positions / 8>(at(), c, bias[0], bias[1]);
    } else if (t < 64) {  // 32 columns
      stage_floats<Positions / 8>(at(), c, bias[0], bias[1]);
    }
    fence_async();
    sync_group();
    if (t == 0) {
      store_image(p.out, at(), 0, 0, row0, n);
      commit_stores();
      wait_stores<0>();
    }
    empty().arrive();
  }

 private:
  __device__ __forceinline__ SharedBarrier barrier(int i) const {
    return {base + p.weight_bytes + p.stages * p.stage_bytes + 8 * i};
  }

  // From registers: a warp writes 32 bytes of four positions at a time.
  __device__ __forceinline__ void store_floats(const float (&c)[Positions / 2], int n,
                                               int row0) const {
    const int t = threadIdx.x % 128, k = t / 32 * 16 + t % 32 / 4;
    const bool exists[2] = {k < p.columns, k + 8 < p.columns};
    const int64_t first = int64_t{n} * p.out_h + row0;
    float* const to = p.direct + first * p.out_w * p.columns + k;
    const int end = min(p.rows, p.out_h - row0) * p.out_w * p.columns;
    // Positions of a row past its end, and the way of eight positions.
    const int past = p.pitch - p.out_w, rows = 8 / p.pitch, rest = 8 - rows * p.pitch;
    const int step = (8 - rows * past) * p.columns, to_next_row = step - past * p.columns;
    int column[2], at[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int position = t % 4 * 2 + e, row = position / p.pitch;
      column[e] = position - row * p.pitch;
      at[e] = (position - row * past) * p.columns;
    }
#pragma unroll
    for (int e = 0; e < Positions / 4; ++e) {
      int &j = column[e % 2], &i = at[e % 2];
      const bool inside = j < p.out_w && i < end;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (inside && exists[half]) to[i + 8 * half] = c[e / 2 * 4 + 2 * half + e % 2] + bias[half];
      }
      j += rest;
      i += j < p.pitch ? step : to_next_row;
      if (j >= p.pitch) j -= p.pitch;
    }
  }
  static __device__ __forceinline__ int group() { return static_cast<int>(threadIdx.x) / 128; }
  static __device__ __forceinline__ void sync_group() {
    asm volatile("bar.sync %0, 128;" : : "r"(1 + group()) : "memory");
  }
  static __device__ __forceinline__ void await_turn() {
    asm volatile("bar.sync %0, 256;" : : "r"(3 + group()) : "memory");
  }
  static __device__ __forceinline__ void pass_turn() {
    asm volatile("bar.arrive %0, 256;" : : "r"(4 - group()) : "memory");
  }
};

// math    out[m][k] = bias[k] + Σ_{r,s,c} in[m ⊕ (r, s)][c] · weights[k][r, s, c]
// grid    one block per multiprocessor, each taking every gridDim.x-th tile of rows of an image
// passes  one; threads have stages copied ahead while two warpgroups multiply, whole tiles in turn
// bytes   in once and its halo again, weights once per block, out once
// smem    weights, and 2 to 4 stages of a tile with its halo
// needs   sm_90a; stride 1; channels of RowBytes times slices, at most 64 columns, 16-byte vectors
// order   each output is summed in the order (slice of c, r, s, c), by one warpgroup
template <class T, int RowBytes, int Positions>
__global__ void __launch_bounds__(kShiftThreads, 1) conv2d_shift(const __grid_constant__ Shift p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  ShiftTiles<T, RowBytes, Positions> tiles(p);
  tiles.open();
  const int group = threadIdx.x / 128;
  if (group == 2) {
    shrink_registers<40>();
    if (threadIdx.x == 256) tiles.copy_tiles();
    if (threadIdx.x == 288) tiles.copy_weights();
  } else {
    grow_registers<232>();
    tiles.load_bias();
    int turn = 0;
    for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x, turn ^= 1) {
      if (turn != group) {
        tiles.advance(p.slices);
        continue;
      }
      float c[Positions / 2];
      const bool last = p.tiles - tile <= static_cast<int>(gridDim.x);
      tiles.multiply(c, tile == static_cast<int>(blockIdx.x), last);
      tiles.store(c, tile / p.row_tiles, tile % p.row_tiles * p.rows);
      tiles.advance();
    }
  }
#endif
}

}  // namespace gradus
