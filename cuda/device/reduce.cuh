// Reductions over a warp and over a block, in an order that depends on the number of threads only:
// no atomics, so the same input gives the same bits. Every thread gets the result.
//
// Blocks may have any shape whose number of threads is a multiple of 32, up to 1024. All threads
// of the block must call the block functions, which may follow each other without a barrier.
#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "core/ops/partial.h"

namespace gradus {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// The operations: a combine(left, right) and the value that changes nothing.
struct SumOp {
  template <class T>
  GRADUS_HD T operator()(T a, T b) const {
    return a + b;
  }
};

// NaN wins over everything, as the maximum of a set that holds one.
struct MaxOp {
  template <class T>
  GRADUS_HD T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};

// Count, mean and sum of squared deviations of a set, merged by Chan, Golub and LeVeque's formula
// (Updating Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979). T is an acc_t;
// the variance is m2 / count.
template <class T>
struct Moments {
  T count = T(0);
  T mean = T(0);
  T m2 = T(0);

  // Welford's step: one more element.
  GRADUS_HD void push(T x) {
    count += T(1);
    const T delta = x - mean;
    mean += delta / count;
    m2 += delta * (x - mean);
  }
};

struct MergeMoments {
  template <class T>
  GRADUS_HD Moments<T> operator()(const Moments<T>& a, const Moments<T>& b) const {
    if (b.count == T(0)) return a;
    if (a.count == T(0)) return b;
    const T count = a.count + b.count;
    const T delta = b.mean - a.mean;
    const T share = b.count / count;
    return {count, a.mean + delta * share, a.m2 + b.m2 + delta * delta * (a.count * share)};
  }
};

namespace detail {

template <class T>
__device__ __forceinline__ T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(kAllLanes, value, mask);
}
template <class T>
__device__ __forceinline__ Moments<T> shuffle_xor(const Moments<T>& value, int mask) {
  return {shuffle_xor(value.count, mask), shuffle_xor(value.mean, mask),
          shuffle_xor(value.m2, mask)};
}

template <class T, int K>
__device__ __forceinline__ Partial<T, K> shuffle_xor(const Partial<T, K>& value, int mask) {
  Partial<T, K> result;
#pragma unroll
  for (int k = 0; k < K; ++k) result.v[k] = shuffle_xor(value.v[k], mask);
  return result;
}

__device__ __forceinline__ int thread_in_block() {
  return static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
}
__device__ __forceinline__ int warps_in_block() {
  return static_cast<int>(blockDim.x * blockDim.y * blockDim.z) / kWarp;
}

// Shared memory for one T per warp, without running T's constructor.
template <class T>
struct alignas(alignof(T)) SharedSlots {
  unsigned char bytes[sizeof(T) * kWarp];
  __device__ __forceinline__ T* get() { return reinterpret_cast<T*>(bytes); }
};

}  // namespace detail

// Over each aligned group of Width lanes (a power of two up to 32); all lanes of the warp call it.
// The lower lane is always the left operand, so that all lanes agree to the bit whatever Op is.
template <int Width = kWarp, class T, class Op>
__device__ __forceinline__ T warp_reduce(T value, Op op) {
  const int lane = detail::thread_in_block() % kWarp;
#pragma unroll
  for (int mask = 1; mask < Width; mask *= 2) {
    const T other = detail::shuffle_xor(value, mask);
    value = (lane & mask) != 0 ? op(other, value) : op(value, other);
  }
  return value;
}

template <int Width = kWarp, class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int mask = 1; mask < Width; mask *= 2) value += detail::shuffle_xor(value, mask);
  return value;
}

template <int Width = kWarp, class T>
__device__ __forceinline__ T warp_max(T value) {
  return warp_reduce<Width>(value, MaxOp{});
}

// Over the block: first each warp, then the results of the warps. op(x, identity) must be x.
template <class T, class Op>
__device__ __forceinline__ T block_reduce(T value, Op op, T identity) {
  __shared__ detail::SharedSlots<T> slots;
  const int thread = detail::thread_in_block();
  const int warps = detail::warps_in_block();
  value = warp_reduce(value, op);
  if (warps == 1) return value;
  __syncthreads();  // an earlier call may still be read
  if (thread % kWarp == 0) slots.get()[thread / kWarp] = value;
  __syncthreads();
  // Every warp reduces the warps' results itself, which saves a barrier and a broadcast.
  const int lane = thread % kWarp;
  return warp_reduce(lane < warps ? slots.get()[lane] : identity, op);
}

template <class T>
__device__ __forceinline__ T block_sum(T value) {
  return block_reduce(value, SumOp{}, T(0));
}

template <class T>
__device__ __forceinline__ Moments<T> block_moments(const Moments<T>& value) {
  return block_reduce(value, MergeMoments{}, Moments<T>{});
}

}  // namespace gradus
