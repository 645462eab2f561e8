// Softmax of short rows that no 16-byte access divides: a block copies a run of whole rows, which
// lie together, to shared memory and back, and a few lanes work on each row there.
#pragma once

#include "cuda/device/reduce.cuh"
#include "cuda/device/round.cuh"
#include "cuda/device/shared.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/softmax_plan.h"
#include "cuda/softmax_values.cuh"

namespace gradus {

// Starts copying `count` values, from a 16-byte boundary on, to shared memory.
template <class T>
__device__ __forceinline__ void stage_in(T* shared, const T* from, int count) {
  constexpr int N = kFullPack<T>;
  const int packs = count / N, thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < packs; i += kSoftmaxThreads) {
    copy_async_once<16>(shared_address(shared + i * N), from + i * N);
  }
  const int rest = packs * N + thread;
  if (rest < count) shared[rest] = from[rest];
}
// After the last stage_in(): all threads see the values.
__device__ __forceinline__ void finish_staging() {
  commit_copies();
  wait_copies<0>();
  __syncthreads();
}

template <class T>
__device__ __forceinline__ void stage_out(T* to, const T* shared, int count) {
  constexpr int N = kFullPack<T>;
  const int packs = count / N, thread = static_cast<int>(threadIdx.x);
#pragma unroll 2
  for (int i = thread; i < packs; i += kSoftmaxThreads) {
    store_pack(to + i * N, load_pack<N>(shared + i * N));
  }
  const int rest = packs * N + thread;
  if (rest < count) to[rest] = shared[rest];
}

// Of a row of c values, a lane's are lane, lane + lanes, ...; K, even, of them at most.
template <int K, class T>
__device__ __forceinline__ void store_lane(T* row, int lane, int lanes, int c,
                                           const acc_t<T> (&values)[K]) {
#pragma unroll
  for (int i = 0; i < K; i += 2) {
    const acc_t<T> two[] = {values[i], values[i + 1]};
    const Pack<T, 2> rounded = round_pack<T, 2>(two);
    const int k = lane + i * lanes;
    if (k < c) row[k] = rounded[0];
    if (k + lanes < c) row[k + lanes] = rounded[1];
  }
}

// Sum or maximum over the lanes of a row.
template <class A, class Op>
__device__ __forceinline__ A reduce_short_row(A value, int lanes, Op op) {
  for (int mask = 1; mask < lanes; mask *= 2) {
    value = op(value, __shfl_xor_sync(kAllLanes, value, mask));
  }
  return value;
}

// math    core/ops/softmax.h
// grid    1-D, a block per `rows` rows; `lanes` threads per row, each takes up to K values
// passes  1
// bytes   fewest = actual = 2Eb
// smem    the rows
// needs   x and y aligned to 16 bytes; rows·c a multiple of 16 bytes
// order   a lane's values, lanes pairwise
// Measured for rows of 10 values: 101 % of a copy in f32 and 98 % in bf16, with 20 KB of rows; with
// 5 KB too few bytes are on their way at a time (78 % in bf16).
template <class T, int K>
__global__ void __launch_bounds__(kSoftmaxThreads, sizeof(T) == 8 ? 3 : 6)
    softmax_forward_staged(const T* __restrict__ x, T* __restrict__ y, SoftmaxShortRows plan,
                           bool log) {
  using A = acc_t<T>;
  using Math = SoftmaxMath<T>;
  T* shared = reinterpret_cast<T*>(dynamic_shared());
  const int64_t first = static_cast<int64_t>(blockIdx.x) * plan.rows;
  const int rows = static_cast<int>(min(static_cast<int64_t>(plan.rows), plan.outer - first));
  const int c = plan.c, lane = static_cast<int>(threadIdx.x) & (plan.lanes - 1);
  const A shift = log ? A(0) : Math::kShift;
  stage_in(shared, x + first * c, rows * c);
  finish_staging();
  // All lanes of a warp stay together, for the shuffles.
  for (int step = 0; step < plan.rows; step += kSoftmaxThreads / plan.lanes) {
    const int row = step + static_cast<int>(threadIdx.x) / plan.lanes;
    T* values = shared + row * c;
    const int left = row < rows ? c : 0;
    A v[K], max = A(-INFINITY), sum = A(0);
#pragma unroll
    for (int i = 0; i < K; ++i) {
      const int k = lane + i * plan.lanes;
      v[i] = k < left ? static_cast<A>(values[k]) : A(-INFINITY);
      max = i == 0 ? v[i] : ::fmax(max, v[i]);
    }
    max = reduce_short_row(max, plan.lanes, SoftmaxMax{});
#pragma unroll
    for (int i = 0; i < K; ++i) {
      if (lane + i * plan.lanes >= left) continue;
      const A z = v[i] - max, e = Math::exp_of(z, shift);
      sum += e;
      v[i] = log ? z : e;
    }
    sum = reduce_short_row(sum, plan.lanes, SumOp{});
    const A scale = log ? Math::log_of(sum) : Math::inverse(sum);
#pragma unroll
    for (int i = 0; i < K; ++i) v[i] = log ? v[i] - scale : v[i] * scale;
    store_lane(values, lane, plan.lanes, left, v);
  }
  __syncthreads();
  stage_out(y + first * c, shared, rows * c);
}

// The same backwards: bytes 3Eb, smem y and dy.
template <class T, int K>
__global__ void __launch_bounds__(kSoftmaxThreads, sizeof(T) == 8 ? 2 : 5)
    softmax_backward_staged(const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx,
                            SoftmaxShortRows plan, bool log) {
  using A = acc_t<T>;
  T* shared = reinterpret_cast<T*>(dynamic_shared());
  T* shared_dy = shared + plan.rows * plan.c;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * plan.rows;
  const int rows = static_cast<int>(min(static_cast<int64_t>(plan.rows), plan.outer - first));
  const int c = plan.c, lane = static_cast<int>(threadIdx.x) & (plan.lanes - 1);
  stage_in(shared, y + first * c, rows * c);
  stage_in(shared_dy, dy + first * c, rows * c);
  finish_staging();
  for (int step = 0; step < plan.rows; step += kSoftmaxThreads / plan.lanes) {
    const int row = step + static_cast<int>(threadIdx.x) / plan.lanes;
    T *values = shared + row * c, *upstream = shared_dy + row * c;
    const int left = row < rows ? c : 0;
    A v[K], d[K], sum = A(0);
#pragma unroll
    for (int i = 0; i < K; ++i) {
      const int k = lane + i * plan.lanes;
      v[i] = k < left ? static_cast<A>(values[k]) : A(0);
      d[i] = k < left ? static_cast<A>(upstream[k]) : A(0);
      if (k < left) sum += log ? d[i] : d[i] * v[i];
    }
    sum = reduce_short_row(sum, plan.lanes, SumOp{});
#pragma unroll
    for (int i = 0; i < K; ++i) {
      v[i] = log ? d[i] - exp_of_output<T>(v[i]) * sum : v[i] * (d[i] - sum);
    }
    store_lane(values, lane, plan.lanes, left, v);
  }
  __syncthreads();
  stage_out(dx + first * c, shared, rows * c);
}

// Calls f(constant K) for the plan.
template <class F>
void with_short_rows(const SoftmaxShortRows& plan, F&& f) {
  if (plan.per_lane <= 4) return f(std::integral_constant<int, 4>());
  if (plan.per_lane <= 8) return f(std::integral_constant<int, 8>());
  if (plan.per_lane <= 12) return f(std::integral_constant<int, 12>());
  f(std::integral_constant<int, 16>());
}

}  // namespace gradus
