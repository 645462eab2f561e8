// The pipeline of the weight gradient of f32 operands on Hopper, whose tensor cores take TF32 from
// shared memory only along the sum, here along the pixels, while channels-last pixels run along
// the channels. So x comes from registers, loaded straight from the pixels as they were copied, and
// dy, which all positions of a block share, is turned in shared memory by three warps.
#pragma once

#include "cuda/device/conv2d_turned_tile.h"
#include "cuda/device/split_tf32.cuh"
#include "cuda/device/tma.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/device/wgmma_registers.cuh"

namespace gradus {

__device__ __forceinline__ uint32_t load_word(uint32_t at) {
  uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(at));
  return word;
}
__device__ __forceinline__ void store_words(uint32_t at, const uint32_t (&words)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
               :
               : "r"(at), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

// Two warpgroups multiply; of a third one, a warp copies and three turn. With Split both operands
// are multiplied in two parts. X: the block's x and what it has of it, TurnedTaps or TurnedHalo.
template <class X>
struct TurnedStages {
  static constexpr int kTiles = X::kTiles, kColumns = X::kColumns;
  static constexpr int kGroups = 2, kTurners = 3;
  static constexpr int kBoxesY = kColumns / 32;
  static constexpr int kBytesX = X::kBytes, kBytesY = kBoxesY * kTurnBoxBytes;
  static constexpr int kBytesTurned = (X::kSplit ? 2 : 1) * kBytesY;
  static constexpr int kTurned = 2;  // stages of the turned dy
  static constexpr int kBarrierBytes = 512;
  static constexpr int kRoom = 227 * 1024 - 1024 - X::kTableBytes - kBarrierBytes;
  static constexpr int kCount = (kRoom - kTurned * kBytesTurned) / (kBytesX + kBytesY);
  static constexpr int kSharedBytes =
      227 * 1024 - kRoom + kTurned * kBytesTurned + kCount * (kBytesX + kBytesY);
  static_assert(kCount >= 2 && 2 * (2 * kCount + kTurned) * 8 <= kBarrierBytes);

  uint32_t base;  // at a multiple of 1024, as every box must be
  int stage = 0, turned_stage = 0;
  uint32_t parity = 0, turned_parity = 0;

  __device__ __forceinline__ TurnedStages()
      : base((shared_address(dynamic_shared()) + 1023) / 1024 * 1024) {}

  __device__ __forceinline__ void open() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kCount; ++i) {
        x_full(i).open(1), y_full(i).open(1);
        x_empty(i).open(kGroups * 4), y_empty(i).open(kTurners);
      }
      for (int i = 0; i < kTurned; ++i) {
        turned_full(i).open(kTurners), turned_empty(i).open(kGroups * 4);
      }
      publish_barriers();
    }
    __syncthreads();
  }

  __device__ __forceinline__ uint32_t x() const {
    return base + kTurned * kBytesTurned + stage * kBytesX;
  }
  __device__ __forceinline__ uint32_t y() const {
    return base + kTurned * kBytesTurned + kCount * kBytesX + stage * kBytesY;
  }
  __device__ __forceinline__ uint32_t turned() const { return base + turned_stage * kBytesTurned; }
  __device__ __forceinline__ int4* table() const {
    return reinterpret_cast<int4*>(dynamic_shared() +
                                   (end() + kBarrierBytes - shared_address(dynamic_shared())));
  }
  __device__ __forceinline__ void advance() {
    if (++stage == kCount) stage = 0, parity ^= 1;
    if (++turned_stage == kTurned) turned_stage = 0, turned_parity ^= 1;
  }

  // The copying thread: the barriers of the next stage, once nobody reads it any more.
  __device__ __forceinline__ SharedBarrier acquire_y() const {
    y_empty(stage).wait(parity ^ 1);
    y_full(stage).arrive_expecting(kBytesY);
    return y_full(stage);
  }
  __device__ __forceinline__ SharedBarrier acquire_x(int bytes) const {
    x_empty(stage).wait(parity ^ 1);
    x_full(stage).arrive_expecting(bytes);
    return x_full(stage);
  }

  // A turning warp, 0 to 2: its share of the next stage of dy.
  __device__ __forceinline__ void turn(int warp) {
    const int lane = threadIdx.x % 32;
    y_full(stage).wait(parity);
    turned_empty(turned_stage).wait(turned_parity ^ 1);
    for (int item = warp; item < kBoxesY * 4; item += kTurners) {
      const int box = item / 4, eight = item % 4;
      const uint32_t from = y() + box * kTurnBoxBytes + eight * 1024 + turned_channel_at(lane);
      uint32_t words[2][4];
#pragma unroll
      for (int p = 0; p < 8; ++p) words[p % 2][p / 2] = load_word((from ^ (p << 4)) + p * 128);
      const int channel = box * 32 + lane;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t to = turned() + turned_terms_at(channel, 2 * eight + half);
        if constexpr (X::kSplit) {
          uint32_t big[4], small[4];
          split(words[half], big, small);
          store_words(to, big);
          store_words(to + kBytesY, small);
        } else {
          store_words(to, words[half]);
        }
      }
    }
    fence_async();
    __syncwarp();
    if (lane == 0) turned_full(turned_stage).arrive(), y_empty(stage).arrive();
    advance();
  }

  // A multiplying warpgroup: its sums over the next `steps` stages, of which there is one at least.
  __device__ __forceinline__ void multiply(float (&c)[kTiles][kColumns / 2], int steps) {
    const Rows rows;
    uint32_t a[2][4];
    clear(c);
    for (int step = 0; step < steps; ++step) {
      wait_full();
      const uint32_t from = x();
      const uint64_t b = describe_operand<Operand::flat>(turned(), 0);
#pragma unroll
      for (int i = 0; i < 4 * kTiles; ++i) {
        const int eight = i / kTiles, tile = i % kTiles;
        wait_products<1>();
        rows.load(a[i % 2], from, tile, eight);
        begin_products();
        multiply_rows<kColumns>(c[tile], a[i % 2], b + eight * kOperandStep<Operand::flat>, true);
        commit_products();
      }
      wait_products<0>();
      release();
      advance();
    }
  }

  // The same for operands in two parts: small·big + big·small, then big·big. The tensor cores cut
  // their sums off instead of rounding them, so each stage is summed by itself and added in f32.
  __device__ __forceinline__ void multiply_split(float (&c)[kTiles][kColumns / 2], int steps) {
    const Rows rows;
    float sums[kColumns / 2];
    clear(c);
    uint32_t big[2][4], small[2][4];
    for (int step = 0; step < steps; ++step) {
      wait_full();
      const uint32_t from = x();
      const uint64_t b_big = describe_operand<Operand::flat>(turned(), 0);
      const uint64_t b_small = describe_operand<Operand::flat>(turned() + kBytesY, 0);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const uint64_t at = i % 4 * kOperandStep<Operand::flat>;
          uint32_t words[4];
          rows.load(words, from, tile, i % 4);
          wait_products<1>();
          split(words, big[i % 2], small[i % 2]);
          begin_products();
          if (i < 4) {
            multiply_rows<kColumns>(sums, small[i % 2], b_big + at, i > 0);
            multiply_rows<kColumns>(sums, big[i % 2], b_small + at, true);
          } else {
            multiply_rows<kColumns>(sums, big[i % 2], b_big + at, true);
          }
          commit_products();
        }
        wait_products<0>();
        if (tile == kTiles - 1) release();
#pragma unroll
        for (int i = 0; i < kColumns / 2; ++i) c[tile][i] += sums[i];
      }
      advance();
    }
  }

 private:
  __device__ __forceinline__ uint32_t end() const {
    return base + kTurned * kBytesTurned + kCount * (kBytesX + kBytesY);
  }
  __device__ __forceinline__ SharedBarrier barrier(int i) const { return {end() + 8 * i}; }
  __device__ __forceinline__ SharedBarrier x_full(int i) const { return barrier(i); }
  __device__ __forceinline__ SharedBarrier x_empty(int i) const { return barrier(kCount + i); }
  __device__ __forceinline__ SharedBarrier y_full(int i) const { return barrier(2 * kCount + i); }
  __device__ __forceinline__ SharedBarrier y_empty(int i) const { return barrier(3 * kCount + i); }
  __device__ __forceinline__ SharedBarrier turned_full(int i) const {
    return barrier(4 * kCount + i);
  }
  __device__ __forceinline__ SharedBarrier turned_empty(int i) const {
    return barrier(4 * kCount + kTurned + i);
  }

  // Where this thread finds its rows of x, from a stage's x on.
  struct Rows {
    uint32_t at[kTiles][2];
    __device__ __forceinline__ Rows() {
      const int t = static_cast<int>(threadIdx.x);
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i)
        at[i / 2][i % 2] = X::rows_at(t / 128, i / 2, t % 128, i % 2);
    }
    __device__ __forceinline__ void load(uint32_t (&a)[4], uint32_t from, int tile,
                                         int eight) const {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t first = from + at[tile][half];
        a[2 * half] = load_word(first + X::eight_at(eight));
        a[2 * half + 1] = load_word((first ^ 32) + X::eight_at(eight));
      }
    }
  };
  static __device__ __forceinline__ void clear(float (&c)[kTiles][kColumns / 2]) {
#pragma unroll
    for (int i = 0; i < kTiles * kColumns / 2; ++i) c[i % kTiles][i / kTiles] = 0;
  }
  __device__ __forceinline__ void wait_full() const {
    x_full(stage).template wait<false>(parity);
    turned_full(turned_stage).template wait<false>(turned_parity);
  }
  __device__ __forceinline__ void release() const {
    if (threadIdx.x % 32 == 0) x_empty(stage).arrive(), turned_empty(turned_stage).arrive();
  }
  static __device__ __forceinline__ void split(const uint32_t (&words)[4], uint32_t (&big)[4],
                                               uint32_t (&small)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const SplitFloat parts = split_tf32(__uint_as_float(words[i]));
      big[i] = __float_as_uint(parts.big), small[i] = __float_as_uint(parts.small);
    }
  }
};

}  // namespace gradus
