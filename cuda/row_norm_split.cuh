// What forward and backward of the row norms share on the host, and their kernels for rows that no
// block can hold: the sums of chunks of a row, merged in order.
#pragma once

#include "cuda/device/row_norm.cuh"
#include "cuda/row_norm_plan.h"

namespace gradus {

// Calls f(constant packs, constant wide) for the kernel that keeps a row in registers.
template <class T, int N, class F>
void with_row_kernel(const RowNormPlan& plan, F&& f) {
  constexpr int kMost = N == 1 || sizeof(T) != 2 ? 4 : 2;
  using Most = std::integral_constant<int, kMost>;
  if (plan.lanes > kWarp) return f(Most(), std::true_type());
  if constexpr (N > 1) {
    if (plan.packs == 1) return f(std::integral_constant<int, 1>(), std::false_type());
    if (kMost == 4 && plan.packs == 2)
      return f(std::integral_constant<int, 2>(), std::false_type());
  }
  f(Most(), std::false_type());
}

// Calls f(constant elements per access): 16 bytes where rows of m elements, tensors and parameters
// (null: not given) allow it, else one element.
template <class T, class F>
void with_row_width(int64_t m, std::initializer_list<const void*> tensors,
                    std::initializer_list<const void*> parameters, F&& f) {
  constexpr int kWide = kFullPack<T>;
  bool wide = pack_width(sizeof(T), tensors, {m}) == kWide;
  for (const void* parameter : parameters)
    wide = wide && reinterpret_cast<uintptr_t>(parameter) % 16 == 0;
  if (wide) {
    f(std::integral_constant<int, kWide>());
  } else {
    f(std::integral_constant<int, 1>());
  }
}

// math   count, mean and Σ (x - mean)² of a chunk, in two passes over registers; without kMean
//        Σ x²
// grid   one block per chunk of a row
// bytes  Eb
// order  a thread's values, then pairwise
template <class T, int N, bool kMean>
__global__ void __launch_bounds__(SplitRowsPlan::kThreads)
    row_norm_chunk_moments(const T* x, int64_t m, const SplitRowsPlan plan,
                           Moments<acc_t<T>>* parts) {
  using A = acc_t<T>;
  constexpr int kThreads = SplitRowsPlan::kThreads, K = SplitRowsPlan::kChunk / kThreads / N;
  const int64_t row = blockIdx.x / plan.chunks, chunk = blockIdx.x - row * plan.chunks;
  const int64_t begin = chunk * SplitRowsPlan::kChunk;
  const int64_t count = min(SplitRowsPlan::kChunk, m - begin);
  const T* from = x + row * m + begin;
  A values[K * N] = {};
  A sum = A(0), square = A(0);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int i = (k * kThreads + threadIdx.x) * N;
    if (i < count) load_values<N>(values + k * N, from + i);
  }
  if constexpr (kMean) {
#pragma unroll
    for (int i = 0; i < K * N; ++i) sum += values[i];
    sum = block_sum(sum);
  }
  const A mean = sum / static_cast<A>(count);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if ((k * kThreads + threadIdx.x) * N >= count) continue;
#pragma unroll
    for (int j = 0; j < N; ++j) square += (values[k * N + j] - mean) * (values[k * N + j] - mean);
  }
  square = block_sum(square);
  if (threadIdx.x == 0) parts[blockIdx.x] = {static_cast<A>(count), mean, square};
}

// grid   one block per row
// order  a thread's chunks in turn, then pairwise
template <class A>
__global__ void __launch_bounds__(SplitRowsPlan::kThreads)
    row_norm_merge_moments(const Moments<A>* parts, int64_t chunks, A* mean, A* rstd, A eps) {
  const int64_t row = blockIdx.x;
  Moments<A> moments;
  for (int64_t chunk = threadIdx.x; chunk < chunks; chunk += SplitRowsPlan::kThreads)
    moments = MergeMoments{}(moments, parts[row * chunks + chunk]);
  moments = block_moments(moments);
  if (threadIdx.x != 0) return;
  if (mean != nullptr) mean[row] = moments.mean;
  rstd[row] = A(1) / sqrt(moments.m2 / moments.count + eps);
}

}  // namespace gradus
