// conv2d forward and backward to the input with a stride of 1 and few channels, by Hopper's
// warpgroup-wide products on tiles that all taps share: the rows of a tile lie in shared memory one
// after the other, each with its halo, so that what tap (r, s) reads of output position p is
// position p + r·pitch + s, and a tap an operand that starts so many positions later.
#pragma once

#include <cuda.h>

#include "cuda/device/quotient.cuh"
#include "cuda/device/tma.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {

struct Shift {
  CUtensorMap in;               // [n, h, w, channels], boxes of box_rows x pitch pixels x RowBytes
  CUtensorMap weights;          // [columns, taps, channels], boxes of 64 columns x RowBytes
  void* out = nullptr;          // [n, out_h, out_w, columns]
  const float* bias = nullptr;  // [columns], or null
  int channels = 0, columns = 0, slices = 1;
  int taps_h = 1, taps_w = 1, step_h = 1, step_w = 1, shift_h = 0, shift_w = 0;
  int out_h = 1, out_w = 1;
  int rows = 1, pitch = 1, box_rows = 1, row_tiles = 1, tiles = 0;
  int weight_bytes = 0, stage_bytes = 0, stages = 2;
  FastDivisor by_pitch;
};

inline constexpr int kShiftThreads = 384;

// Shared memory: the weights, a box per tap and slice of channels, then stages of a tile's slice.
// Two warpgroups multiply, whole tiles in turn; a thread of a third one copies.
template <class T, int RowBytes, int Positions>
struct ShiftTiles {
  static constexpr int kWeightBox = 64 * RowBytes;
  static constexpr int kChannels = RowBytes / static_cast<int>(sizeof(T));

  const Shift& p;
  uint32_t base;  // at a multiple of 1024
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ explicit ShiftTiles(const Shift& problem)
      : p(problem), base((shared_address(dynamic_shared()) + 1023) / 1024 * 1024) {}

  __device__ __forceinline__ SharedBarrier weights_full() const { return barrier(0); }
  __device__ __forceinline__ SharedBarrier full() const { return barrier(1 + 2 * stage); }
  __device__ __forceinline__ SharedBarrier empty() const { return barrier(2 + 2 * stage); }
  __device__ __forceinline__ uint32_t at() const {
    return base + p.weight_bytes + stage * p.stage_bytes;
  }
  __device__ __forceinline__ void open() {
    if (threadIdx.x == 0) {
      weights_full().open(1);
      for (stage = 0; stage < p.stages; ++stage) full().open(1), empty().open(128);
      publish_barriers();
    }
    stage = 0;
    __syncthreads();
  }
  __device__ __forceinline__ void advance(int by = 1) {
    stage += by;
    if (stage >= p.stages) stage -= p.stages, parity ^= 1;
  }

  // The copying thread.
  __device__ __forceinline__ void copy() {
    weights_full().arrive_expecting(p.weight_bytes);
    const int boxes = p.weight_bytes / kWeightBox;
    for (int box = 0; box < boxes; ++box) {
      const int tap = box / p.slices, slice = box % p.slices;
      copy_box(base + box * kWeightBox, p.weights, weights_full(),
               tap * p.channels + slice * kChannels, 0);
    }
    for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
      const int n = tile / p.row_tiles, row = tile % p.row_tiles * p.rows;
      for (int slice = 0; slice < p.slices; ++slice, advance()) {
        empty().wait(parity ^ 1);
        full().arrive_expecting(p.pitch * p.box_rows * RowBytes);
        copy_image(at(), p.in, full(), slice * kChannels, p.shift_w, row + p.shift_h, n);
      }
    }
  }

  // A warpgroup: the products of a tile. Leaves the last slice's stage to it. The groups wait for
  // stages in turn: of a stage that was not yet filled the time before, parity cannot tell the
  // next time from the one before that.
  __device__ __forceinline__ void multiply(float (&c)[Positions / 2], bool first, bool last) {
    if (!first) await_turn();
    for (int slice = 0; slice < p.slices; ++slice) {
      if (slice > 0) empty().arrive(), advance();
      full().template wait<false>(parity);
      if (slice == p.slices - 1 && !last) pass_turn();
      uint32_t w = base + slice * kWeightBox, row = at();
#pragma unroll 1
      for (int r = 0; r < p.taps_h; ++r, row += p.step_h * p.pitch * RowBytes) {
        uint32_t x = row;
#pragma unroll 1
        for (int s = 0; s < p.taps_w; ++s, x += p.step_w * RowBytes) {
          const uint64_t a = describe_rows<RowBytes>(w), b = describe_rows<RowBytes>(x);
          begin_products();
#pragma unroll
          for (int k = 0; k < RowBytes / 32; ++k) {
            multiply_group<T, Positions, Operand::flat>(c, a + 2 * k, b + 2 * k,
                                                        slice > 0 || r > 0 || s > 0 || k > 0);
          }
          commit_products();
          w += p.slices * kWeightBox;
        }
      }
      wait_products<0>();
    }
  }

  // Where output position i of a tile goes, in pixels from its first one, or -1.
  __device__ __forceinline__ int target(int i, int row0) const {
    const int row = static_cast<int>(p.by_pitch.quotient(i)), column = i - row * p.pitch;
    const bool exists = column < p.out_w && row < p.rows && row0 + row < p.out_h;
    return exists ? row * p.out_w + column : -1;
  }

  // A warpgroup: its sums to `out`, the tile's first pixel; the stage is left for the next copy.
  __device__ __forceinline__ void store(const float (&c)[Positions / 2], T* out, int row0) const {
    const int t = threadIdx.x % 128, warp = t / 32, lane = t % 32;
    const int column = warp * 16 + lane / 4;  // and column + 8
    const auto bias_of = [&](int i) {
      return p.bias != nullptr && i < p.columns ? p.bias[i] : 0.0f;
    };
    const float bias[2] = {bias_of(column), bias_of(column + 8)};
    if constexpr (sizeof(T) == 4) {
      empty().arrive();
#pragma unroll
      for (int i = 0; i < Positions / 2; ++i) {
        const int to = target(i / 4 * 8 + lane % 4 * 2 + i % 2, row0), k = column + i % 4 / 2 * 8;
        if (to >= 0 && k < p.columns) out[int64_t{to} * p.columns + k] = c[i] + bias[i % 4 / 2];
      }
    } else {
      store_staged(c, out, row0, bias);
    }
  }

 private:
  __device__ __forceinline__ SharedBarrier barrier(int i) const {
    return {base + p.weight_bytes + p.stages * p.stage_bytes + 8 * i};
  }

  // 16 bits: turned in the tile's place to rows of 128 bytes of a position, as many at a time as it
  // has room for, and from there in whole vectors.
  __device__ __forceinline__ void store_staged(const float (&c)[Positions / 2], T* out, int row0,
                                               const float (&bias)[2]) const {
    constexpr int kRun = RowBytes == 128 ? Positions : Positions / 2 / 16 * 16;
    const int t = threadIdx.x % 128, warp = t / 32, lane = t % 32;
    const uint32_t box = at();
    sync_half();
#pragma unroll
    for (int run = 0; run < (Positions + kRun - 1) / kRun; ++run) {
      const int first = run * kRun;
#pragma unroll
      for (int j = 0; j < kRun / 8; j += 2) {
        if (first + j * 8 >= Positions) continue;
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int e = (first / 8 + j) * 4 + 2 * i;
          const bool exists = e < Positions / 2;
          const float pair[2] = {exists ? c[exists ? e : 0] + bias[i % 2] : 0.0f,
                                 exists ? c[exists ? e + 1 : 0] + bias[i % 2] : 0.0f};
          const Pack<T, 2> narrow = narrow_pack<T>(pair);
          memcpy(&words[i], &narrow, 4);
        }
        const int i = (j + lane / 16) * 8 + lane % 8, vector = warp * 2 + lane / 8 % 2;
        store_matrices_transposed(box + i * 128 + ((vector ^ (i & 7)) << 4), words);
      }
      sync_half();
      for (int i = t / 8; i < kRun && first + i < Positions; i += 16) {
        const int to = target(first + i, row0), vector = t % 8;
        if (to < 0 || vector * 8 >= p.columns) continue;
        store_pack(out + int64_t{to} * p.columns + vector * 8,
                   load_shared<T>(box + i * 128 + ((vector ^ (i & 7)) << 4)));
      }
      if (first + kRun < Positions) sync_half();
    }
    fence_async();
    empty().arrive();
  }
  template <class U>
  static __device__ __forceinline__ Pack<U, 8> load_shared(uint32_t at) {
    uint32_t words[4];
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(at));
    Pack<U, 8> pack;
    memcpy(&pack, words, 16);
    return pack;
  }
  static __device__ __forceinline__ int group() { return static_cast<int>(threadIdx.x) / 128; }
  static __device__ __forceinline__ void sync_half() {
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
// passes  one; a thread has stages copied ahead while two warpgroups multiply, whole tiles in turn
// bytes   in once and its halo again, weights once per block, out once
// smem    weights, and 2 to 4 stages of a tile with its halo
// needs   sm_90a; stride 1; channels of RowBytes times slices, at most 64 columns, 16-byte vectors
// order   each output is summed in the order (slice of c, r, s, c), by one warpgroup
template <class T, int RowBytes, int Positions>
__global__ void __launch_bounds__(kShiftThreads, 1) conv2d_shift(const __grid_constant__ Shift p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  ShiftTiles<T, RowBytes, Positions> tiles(p);
  tiles.open();
  wait_for_previous_kernel();
  const int group = threadIdx.x / 128;
  if (group == 2) {
    shrink_registers<40>();
    if (threadIdx.x == 256) tiles.copy();
  } else {
    grow_registers<232>();
    tiles.weights_full().template wait<false>(0);
    int turn = 0;
    for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x, turn ^= 1) {
      if (turn != group) {
        tiles.advance(p.slices);
        continue;
      }
      float c[Positions / 2];
      const bool last = p.tiles - tile <= static_cast<int>(gridDim.x);
      tiles.multiply(c, tile == static_cast<int>(blockIdx.x), last);
      const int n = tile / p.row_tiles, row0 = tile % p.row_tiles * p.rows;
      const int64_t first = (static_cast<int64_t>(n) * p.out_h + row0) * p.out_w;
      tiles.store(c, static_cast<T*>(p.out) + first * p.columns, row0);
      tiles.advance();
    }
  }
#endif
}

}  // namespace gradus
