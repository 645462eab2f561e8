// conv2d backward to the weights of 16-bit operands and 3 x 3 windows on Hopper: x lies in shared
// memory once, row by row and each with its halo, so that a tap is an operand that starts so many
// pixels later.
#pragma once

#include <cuda.h>

#include "cuda/device/cluster.cuh"
#include "cuda/device/conv2d_window.cuh"
#include "cuda/device/tma.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {

// A step is a tile of whole rows of dy. The sum runs over 16 of its pixels at a time: `per_row`
// times along a row and on by `skip` to the next one (or, where rows are of 8, along two rows).
struct ShiftWgrad {
  CUtensorMap x, dy;           // boxes of 64 channels x (pitch | width) x (rows of x | rows)
  float* partials = nullptr;   // [pairs of slices, k, taps, channels], or as the threads hold them
  float* bias_sums = nullptr;  // [slices, kShiftWgradAdders, k], or null
  int channels = 0, k = 0, k_tiles = 1, tiles = 1;  // tiles of the weights
  int shift_h = 0, shift_w = 0, rows = 0, row_tiles = 1, steps = 0, slice_steps = 0;
  int per_row = 1, passes = 1;
  int skip = 0, row_bytes = 0, eight_bytes = 0;  // of x: skip in units of 16 bytes
  int dy_bytes = 0, x_bytes = 0, stage_bytes = 0, stages = 2;
};

inline constexpr int kShiftWgradCluster = 2;
inline constexpr int kShiftWgradAdders = 3;    // warps that add dy up
inline constexpr int kShiftWgradVectors = 24;  // of 4 sums of a thread
inline constexpr int kShiftWgradMail = kShiftWgradVectors / 2 * 384 * 16;

// Of the next product of a stage, `column` sixteens of pixels behind the beginning of its pass.
struct ShiftWgradOperands {
  uint64_t a, b;
  int column = 0;
};

// Groups warpgroups multiply 64 channels k by 64 channels c of the taps (r, 0), (r, 1), (r, 2)
// each, of r = first_row and on; a thread of one more copies, and the other three warps of that add
// dy up for the gradient of the bias.
template <int Groups>
struct ShiftWgradStages {
  static constexpr int kThreads = (Groups + 1) * 128, kMultipliers = 4 * Groups;
  static constexpr int kReaders = kMultipliers + kShiftWgradAdders;  // warps, with those that add

  const ShiftWgrad& p;
  int first_row;
  uint32_t base;  // at a multiple of 1024
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ ShiftWgradStages(const ShiftWgrad& problem, int row)
      : p(problem), first_row(row), base((shared_address(dynamic_shared()) + 1023) / 1024 * 1024) {}

  __device__ __forceinline__ uint32_t at(int i) const { return base + 1024 + i * p.stage_bytes; }
  __device__ __forceinline__ SharedBarrier full(int i) const { return {base + 16 * i}; }
  __device__ __forceinline__ SharedBarrier empty(int i) const { return {base + 16 * i + 8}; }
  __device__ __forceinline__ void advance() {
    if (++stage == p.stages) stage = 0, parity ^= 1;
  }

  // What lies behind x is read where rows are not whole, and multiplied by zeros.
  __device__ __forceinline__ void open(bool bias) const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < p.stages; ++i) {
        full(i).open(1), empty(i).open(bias ? kReaders : kMultipliers);
      }
      publish_barriers();
    }
    for (int i = 0; i < p.stages; ++i) {
      const uint32_t behind = at(i) + p.dy_bytes + p.x_bytes;
      for (uint32_t to = behind + threadIdx.x * 16; to < at(i + 1); to += kThreads * 16) {
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" : : "r"(to), "r"(0) : "memory");
      }
    }
    fence_async();
    __syncthreads();
  }

  // The copying thread.
  __device__ __forceinline__ void copy(int begin, int end, int k0, int c0) {
    for (int step = begin; step < end; ++step, advance()) {
      const int n = step / p.row_tiles, row = step % p.row_tiles * p.rows;
      empty(stage).wait(parity ^ 1);
      full(stage).arrive_expecting(p.dy_bytes + p.x_bytes);
      copy_image(at(stage), p.dy, full(stage), k0, 0, row, n);
      copy_image(at(stage) + p.dy_bytes, p.x, full(stage), c0, p.shift_w,
                 row + first_row + p.shift_h, n);
    }
  }

  // An adding warp: its share of the sums of dy's 64 channels, each lane one vector of every
  // twelfth pixel, then those lanes together; to the first `channels` of `out`. Meets the others at
  // barrier 1 once it no longer reads dy, where blocks are in pairs: see add_pair().
  template <class T>
  __device__ __forceinline__ void add_bias(int warp, int steps, float* out, int channels) {
    const int lane = threadIdx.x % 32, vector = lane % 8, pixels = p.dy_bytes / 128;
    float sums[8] = {};
    for (int step = 0; step < steps; ++step, advance()) {
      full(stage).template wait<false>(parity);
      for (int pixel = warp * 4 + lane / 8; pixel < pixels; pixel += 4 * kShiftWgradAdders) {
        uint32_t words[4];
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(at(stage) + pixel * 128 + ((vector ^ pixel % 8) << 4)));
        Pack<T, 8> dy;
        memcpy(&dy, words, 16);
#pragma unroll
        for (int e = 0; e < 8; ++e) sums[e] += static_cast<float>(dy[e]);
      }
      __syncwarp();
      if (lane == 0) empty(stage).arrive();
    }
    if constexpr (Groups > 1) asm volatile("bar.arrive 1, %0;" : : "r"(kReaders * 32) : "memory");
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      sums[e] += __shfl_xor_sync(~0u, sums[e], 8);
      sums[e] += __shfl_xor_sync(~0u, sums[e], 16);
      if (lane < 8 && vector * 8 + e < channels) out[vector * 8 + e] = sums[e];
    }
  }

  // A warpgroup: the sums of its three taps, of which each is 64 columns.
  template <class T>
  __device__ __forceinline__ void multiply(float (&c)[96], int steps) {
    if (steps == 0) {  // the last slice of all
#pragma unroll
      for (float& sum : c) sum = 0;
      return;
    }
    const uint32_t first = p.dy_bytes + threadIdx.x / 128 * p.row_bytes;
    for (int step = 0; step < steps; ++step) {
      full(stage).template wait<false>(parity);
      ShiftWgradOperands next{
          describe_operand<Operand::upright>(at(stage), 128),
          describe_operand<Operand::upright>(at(stage) + first, 128, p.eight_bytes)};
      bool begun = false;
      const auto batch = [&](auto count) {
        multiply_batch<T, decltype(count)::value>(c, next, step > 0 || begun);
        if (step > 0 && !begun) {
          wait_products<1>();
          release(stage == 0 ? p.stages - 1 : stage - 1);
        }
        begun = true;
      };
      int left = p.passes * p.per_row;
      for (; left >= 4; left -= 4) batch(std::integral_constant<int, 4>{});
      if (left & 2) batch(std::integral_constant<int, 2>{});
      if (left & 1) batch(std::integral_constant<int, 1>{});
      advance();
    }
    wait_products<0>();
  }

 private:
  // Count products with no branch between them and one fence before: a fence before each of them,
  // as a loop has it, waits for the one before to end.
  template <class T, int Count>
  __device__ __forceinline__ void multiply_batch(float (&c)[96], ShiftWgradOperands& next,
                                                 bool add) const {
    uint64_t a[Count], b[Count];
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      a[i] = next.a, b[i] = next.b;
      next.a += kOperandStep<Operand::upright>, next.b += kOperandStep<Operand::upright>;
      const bool ends = ++next.column == p.per_row;
      next.b += ends ? p.skip : 0;
      next.column = ends ? 0 : next.column;
    }
    begin_products();
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      multiply_group<T, 192, Operand::upright>(c, a[i], b[i], add || i > 0);
    }
    commit_products();
  }
  __device__ __forceinline__ void release(int i) const {
    if (threadIdx.x % 32 == 0) empty(i).arrive();
  }
};

// Adds the sums of the cluster's two blocks, vector by vector of the threads of the multiplying
// warpgroups, and calls store(j, sum) for this block's half of the vectors. `mail`: a place of
// kShiftWgradMail bytes that nobody uses once the block's `readers`, those warps and perhaps the
// adding ones, have met at barrier 1. The other threads call attend_pair() meanwhile.
template <class Store>
__device__ __forceinline__ void add_pair(uint32_t mail, int readers, const float (&c)[96],
                                         const Store& store) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr int kHalf = kShiftWgradVectors / 2;
  const unsigned rank = cluster_rank();
  const uint32_t own = mail + threadIdx.x * 16;
  uint32_t others;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(others) : "r"(own), "r"(rank ^ 1));
  asm volatile("bar.sync 1, %0;" : : "r"(readers * 32) : "memory");
  float sums[4 * kHalf];
#pragma unroll
  for (int j = 0; j < kHalf; ++j) {
    float out[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float low = c[4 * j + i], high = c[4 * (j + kHalf) + i];
      out[i] = rank == 0 ? high : low, sums[4 * j + i] = rank == 0 ? low : high;
    }
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(own + j * 384 * 16), "f"(out[0]), "f"(out[1]), "f"(out[2]), "f"(out[3])
                 : "memory");
  }
  cluster_arrive();
  cluster_wait();
  // All at once: each takes as long as a way to another multiprocessor and back.
  float in[4 * kHalf];
#pragma unroll
  for (int j = 0; j < kHalf; ++j) {
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(in[4 * j]), "=f"(in[4 * j + 1]), "=f"(in[4 * j + 2]), "=f"(in[4 * j + 3])
                 : "r"(others + j * 384 * 16)
                 : "memory");
  }
  cluster_arrive();  // before the stores, for which it would wait
#pragma unroll
  for (int j = 0; j < kHalf; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) in[4 * j + i] += sums[4 * j + i];
    store(static_cast<int>(rank) * kHalf + j, &in[4 * j]);
  }
  cluster_wait();
#endif
}
__device__ __forceinline__ void attend_pair() {
  __syncwarp();
  cluster_arrive();
  cluster_wait();
  cluster_arrive();
  cluster_wait();
}

// math    partials[pair][k][r, s, c] = Σ_{pixels of two slices} dy[pixel][k] · x[pixel ⊕ (r, s)][c]
//         bias_sums[slice][warp][k] = Σ dy[pixel][k]
// grid    one cluster of two blocks, a slice of the steps each, per pair of slices and tile of 64 x
//         64 channels
// passes  one over the slice's rows
// bytes   fewest: x, dy once; actual, from L2: x and its halo once per channel tile of dy, dy once
//         per channel tile of x
// smem    4 to 8 stages of a tile's rows of dy, and of x with its halo; afterwards half of the sums
// needs   sm_90a; stride and dilation 1; channels of x a multiple of 64, of dy of 8, both 16-byte
//         aligned. Pixels of the tiles that dy does not have count as zeros times an x that may
//         exist: of a channel where that is not finite, no tap's sum is, either
// order   pixels in order within a slice, the two slices, then the pairs in order in conv2d_reduce;
//         of the bias every twelfth pixel in order, four of those, then warps and slices
template <class T>
__global__ void __launch_bounds__(ShiftWgradStages<3>::kThreads, 1)
    conv2d_shift_wgrad(const __grid_constant__ ShiftWgrad p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  ShiftWgradStages<3> stages(p, 0);
  const int cluster = blockIdx.x / kShiftWgradCluster, tile = cluster % p.tiles;
  const int pair = cluster / p.tiles, slice = pair * kShiftWgradCluster + blockIdx.x % 2;
  const int k0 = tile % p.k_tiles * 64, c0 = tile / p.k_tiles * 64;
  const bool bias = p.bias_sums != nullptr && c0 == 0;
  stages.open(bias);
  wait_for_previous_kernel();
  start_next_kernel();
  const int begin = min(slice * p.slice_steps, p.steps);
  const int end = min(begin + p.slice_steps, p.steps);
  const int group = threadIdx.x / 128;
  if (group == 3) {
    shrink_registers<48>();
    const int warp = threadIdx.x % 128 / 32;
    if (threadIdx.x % 128 == 0) stages.copy(begin, end, k0, c0);
    if (bias && warp > 0) {
      const int row = slice * kShiftWgradAdders + warp - 1;
      stages.add_bias<T>(warp - 1, end - begin, p.bias_sums + int64_t{row} * p.k + k0, p.k - k0);
    }
    attend_pair();
  } else {
    grow_registers<152>();
    float c[96];
    stages.multiply<T>(c, end - begin);
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    const int k = k0 + warp * 16 + lane / 4;  // and k + 8
    float* const out = p.partials + (static_cast<int64_t>(pair) * p.k + k) * 9 * p.channels +
                       group * 3 * p.channels + c0 + lane % 4 * 2;
    const auto store = [](float* to, float first, float second) {
      asm volatile("st.global.v2.f32 [%0], {%1, %2};"
                   :
                   : "l"(to), "f"(first), "f"(second)
                   : "memory");
    };
    const int readers = bias ? stages.kReaders : stages.kMultipliers;
    add_pair(stages.at(0), readers, c, [&](int j, const float* sum) {
      float* const to = out + j / 8 * p.channels + j % 8 * 8;
      if (k < p.k) store(to, sum[0], sum[1]);
      if (k + 8 < p.k) store(to + 72 * p.channels, sum[2], sum[3]);
    });
  }
#endif
}

}  // namespace gradus
