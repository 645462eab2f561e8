// What the kernels of several norms share.
#pragma once

#include <cstdint>

#include "cuda/device/reduce.cuh"
#include "cuda/device/shared.cuh"

namespace gradus {

// wait_copies<pending>() for 0 to 3: constants once a loop is unrolled, or the same for all
// threads.
__device__ __forceinline__ void wait_copies_but(int pending) {
  if (pending == 3) wait_copies<3>();
  if (pending == 2) wait_copies<2>();
  if (pending == 1) wait_copies<1>();
  if (pending == 0) wait_copies<0>();
}

// sum / m to the last place, by way of 1 / m; not for infinite sums.
template <class A>
__device__ __forceinline__ A divide(A sum, A m, A reciprocal) {
  const A quotient = sum * reciprocal;
  return fma(fma(-quotient, m, sum), reciprocal, quotient);
}

// from[i·stride] for i = first, first + step, ... below `end`, combined in turn with `zero`. Loads
// go out in batches, the last of which is no slower than the others.
template <class T, class Op>
__device__ __forceinline__ T reduce_strided(const T* from, int64_t first, int64_t end, int64_t step,
                                            int64_t stride, Op op, T zero) {
  constexpr int kBatch = 8;
  T total = zero;
  for (int64_t i = first; i < end; i += kBatch * step) {
    T values[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k)
      values[k] = i + k * step < end ? from[(i + k * step) * stride] : zero;
#pragma unroll
    for (int k = 0; k < kBatch; ++k) total = op(total, values[k]);
  }
  return total;
}

// Moments by sums about a rounded mean, which `residual`, Σ (x - mean), corrects; share = 1 /
// count, or 0. A sum of squares that is not finite stays so, whatever is taken from it.
template <class A>
__device__ __forceinline__ Moments<A> correct_moments(A count, A share, A mean, A square,
                                                      A residual) {
  const A shift = residual * share;
  const A m2 = square - square == A(0) ? square - residual * shift : square;
  return {count, mean + shift, m2 < A(0) ? A(0) : m2};
}

// Moments of each aligned group of Width lanes, all at once: MergeMoments divides at every step, on
// either side of a branch. In pairs where a group's sum is not finite.
template <int Width = kWarp, class A>
__device__ __forceinline__ Moments<A> merge_lanes(const Moments<A>& value) {
  const A count = warp_sum<Width>(value.count), sum = warp_sum<Width>(value.count * value.mean);
  const bool in_pairs = sum - sum != A(0);
  Moments<A> pairs{};
  if (__any_sync(kAllLanes, in_pairs)) pairs = warp_reduce<Width>(value, MergeMoments{});
  const A share = count > A(0) ? A(1) / count : A(0), centre = sum * share;
  const A delta = value.mean - centre, part = value.count * delta;
  const A residual = warp_sum<Width>(part), square = warp_sum<Width>(value.m2 + part * delta);
  return in_pairs ? pairs : correct_moments(count, share, centre, square, residual);
}

}  // namespace gradus
