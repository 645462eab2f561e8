// The pipeline that Hopper's convolution kernels share: one thread has the copy engine fill stages
// of shared memory, two warpgroups multiply what lies there.
#pragma once

#include "cuda/device/tma.cuh"
#include "cuda/device/wgmma.cuh"

namespace gradus {

// Of a block: two warpgroups that multiply, one of which a thread copies.
inline constexpr int kWgmmaConsumers = 256, kWgmmaThreads = 384;

// A block's tile of Rows x Columns sums. Two warpgroups share it: 64 of 128 rows each, or with 64
// rows half the columns each. A stage holds 128 bytes of the sum for every row and every column
// (flat), or 64 pixels of Rows and Columns channels in boxes of 64 x 64 (upright); with Split it
// holds the rows' big and small parts, then the columns'. Staging: before the stages, two boxes for
// each warpgroup to turn its results in.
template <class T, int Rows, int Columns, bool Split, bool Staging>
struct WgmmaStages {
  static_assert(Rows == 64 || Rows == 128);
  static constexpr int kGroupColumns = Rows == 64 ? Columns / 2 : Columns;
  static constexpr int kDepth = 128 / static_cast<int>(sizeof(T));  // of the sum, flat
  static constexpr int kParts = Split ? 2 : 1;
  static constexpr int kBytesA = Rows * 128, kBytesB = Columns * 128;  // of one part
  static constexpr int kBytes = kParts * (kBytesA + kBytesB);
  static constexpr int kBoxBytes = 64 * 128;
  static constexpr int kStagingBytes = Staging ? 4 * kBoxBytes : 0;
  static constexpr int kCount = (226 * 1024 - kStagingBytes) / kBytes;
  static constexpr int kSharedBytes = 1024 + kStagingBytes + kCount * kBytes + 256;

  static_assert(kSharedBytes <= 227 * 1024);

  uint32_t staging;  // at a multiple of 1024, as every box must be
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ WgmmaStages()
      : staging((shared_address(dynamic_shared()) + 1023) / 1024 * 1024) {}

  __device__ __forceinline__ void open() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kCount; ++i) {
        full(i).open(1);
        empty(i).open(kWgmmaConsumers / 32);
      }
      publish_barriers();
    }
    __syncthreads();
  }
  static __device__ __forceinline__ int group() { return static_cast<int>(threadIdx.x) / 128; }
  __device__ __forceinline__ uint32_t a() const { return staging + kStagingBytes + stage * kBytes; }
  __device__ __forceinline__ uint32_t b() const { return a() + kParts * kBytesA; }
  __device__ __forceinline__ void advance() {
    if (++stage == kCount) stage = 0, parity ^= 1;
  }

  // The copying thread: the barrier of the next stage, once nobody reads it any more.
  __device__ __forceinline__ SharedBarrier acquire(int bytes = kBytes) const {
    empty(stage).wait(parity ^ 1);
    full(stage).arrive_expecting(bytes);
    return full(stage);
  }

  // A multiplying warpgroup: its sums over the next `steps` stages, of which there is one at least.
  template <Operand O>
  __device__ __forceinline__ void multiply(float (&c)[kGroupColumns / 2], int steps) {
    for (int step = 0; step < steps; ++step) {
      full(stage).wait(parity);
      begin_products();
      multiply_stage<O>(c, a() + rows(), b() + columns(), step > 0);
      commit_products();
      if (step > 0) {
        wait_products<1>();
        release(stage == 0 ? kCount - 1 : stage - 1);
      }
      advance();
    }
    wait_products<0>();
    release(stage == 0 ? kCount - 1 : stage - 1);
  }

  // The same for operands in two parts: small·big + big·small + big·big. The tensor cores cut their
  // sums off instead of rounding them, so each stage is summed by itself and added in f32.
  __device__ __forceinline__ void multiply_split(float (&c)[kGroupColumns / 2], int steps) {
    float sums[kGroupColumns / 2];
#pragma unroll
    for (float& sum : c) sum = 0;
    for (int step = 0; step < steps; ++step) {
      full(stage).wait(parity);
      const uint32_t left = a() + rows(), right = b() + columns();
      begin_products();
      multiply_stage<Operand::flat>(sums, left + kBytesA, right, false);
      multiply_stage<Operand::flat>(sums, left, right + kBytesB, true);
      multiply_stage<Operand::flat>(sums, left, right, true);
      commit_products();
      wait_products<0>();
      release(stage);
      advance();
#pragma unroll
      for (int i = 0; i < kGroupColumns / 2; ++i) c[i] += sums[i];
    }
  }

 private:
  __device__ __forceinline__ uint32_t barriers() const {
    return staging + kStagingBytes + kCount * kBytes;
  }
  __device__ __forceinline__ SharedBarrier full(int i) const { return {barriers() + 16 * i}; }
  __device__ __forceinline__ SharedBarrier empty(int i) const { return {barriers() + 16 * i + 8}; }
  __device__ __forceinline__ void release(int i) const {
    if (threadIdx.x % 32 == 0) empty(i).arrive();
  }
  // Where this warpgroup's share of a stage's operands begins.
  static __device__ __forceinline__ uint32_t rows() { return Rows == 64 ? 0 : group() * kBoxBytes; }
  static __device__ __forceinline__ uint32_t columns() {
    return Rows == 64 ? group() * kBytesB / 2 : 0;
  }
  template <Operand O>
  static __device__ __forceinline__ void multiply_stage(float (&c)[kGroupColumns / 2],
                                                        uint32_t left, uint32_t right, bool add) {
    uint64_t a = describe_operand<O>(left, kBoxBytes), b = describe_operand<O>(right, kBoxBytes);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      multiply_group<T, kGroupColumns, O>(c, a, b, add || i > 0);
      a += kOperandStep<O>, b += kOperandStep<O>;
    }
  }
};

// The threads of one multiplying warpgroup.
__device__ __forceinline__ void sync_group() {
  asm volatile("bar.sync %0, 128;" : : "r"(1 + static_cast<int>(threadIdx.x) / 128) : "memory");
}

}  // namespace gradus
