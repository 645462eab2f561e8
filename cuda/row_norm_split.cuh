// What forward and backward of the row norms share on the host, and their kernels for rows that no
// block can hold: the sums of chunks of a row, merged in order.
#pragma once

#include "core/ops/normalization.h"
#include "cuda/context.h"
#include "cuda/device/row_norm.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/row_norm_plan.h"

namespace gradus {

// Calls f(constant packs, constant group) for the kernel that keeps a row in registers.
template <class T, int N, int kTensors, class F>
void with_row_kernel(const RowNormPlan& plan, F&& f) {
  constexpr int kMostOfLane = detail::most_lane_packs(sizeof(T), N, kTensors);
  using Most = std::integral_constant<int, detail::most_packs(sizeof(T), N)>;
  using MostOfLane = std::integral_constant<int, kMostOfLane>;
  using Lanes = std::integral_constant<RowGroup, RowGroup::lanes>;
  if (plan.group == RowGroup::warps)
    return f(Most(), std::integral_constant<RowGroup, RowGroup::warps>());
  if constexpr (N > 1) {
    if (plan.packs == 1) return f(std::integral_constant<int, 1>(), Lanes());
    if (kMostOfLane == 4 && plan.packs == 2) return f(std::integral_constant<int, 2>(), Lanes());
  }
  f(MostOfLane(), Lanes());
}

// The launch of a kernel over a plan's rows, in clusters where it has them.
template <class... Params, class... Args>
void launch_row_norm(Cuda& cuda, const RowNormPlan& plan, void (*kernel)(Params...),
                     const Args&... args) {
  const LaunchShape shape{.grid = exact_blocks(plan.blocks(), "row_norm"),
                          .threads = plan.threads(),
                          .shared_bytes = static_cast<size_t>(plan.shared_bytes),
                          .cluster = plan.cluster};
  plan.overlaps ? launch_overlapping(cuda, shape, kernel, args...)
                : launch_kernel(cuda, shape, kernel, args...);
}

// The sets of rows of a run: neighbours, or where every run has its place on the card at once every
// runs-th one, so that all runs together walk through memory in one front.
struct RowRun {
  int64_t set, end, step;
};
__device__ __forceinline__ RowRun row_run(int64_t rows, const RowNormPlan& plan) {
  const int64_t run = blockIdx.x / plan.cluster, sets = (rows + plan.slots - 1) / plan.slots;
  if (plan.interleaved) return {run, sets, plan.runs};
  return {sets * run / plan.runs, sets * (run + 1) / plan.runs, 1};
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

// A thread's values of a parameter, `absent` where there is none.
template <int N, int K, class A>
__device__ __forceinline__ void load_parameter(A (&values)[K * N], const A* parameter, A absent,
                                               int lane, int lanes, int packs) {
#pragma unroll
  for (int k = 0; k < K; ++k) {
#pragma unroll
    for (int j = 0; j < N; ++j) values[k * N + j] = absent;
    const int pack = lane + k * lanes;
    if (parameter != nullptr && pack < packs) load_values<N>(values + k * N, parameter + pack * N);
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
  constexpr bool kCorrects = kMean && sizeof(T) > 2;  // 16-bit values are coarser anyway
  const int64_t row = blockIdx.x / plan.chunks, chunk = blockIdx.x - row * plan.chunks;
  const int64_t begin = chunk * SplitRowsPlan::kChunk;
  const int64_t count = min(SplitRowsPlan::kChunk, m - begin);
  const T* from = x + row * m + begin;
  A values[K * N] = {};
  A sum = A(0), square = A(0), residual = A(0);
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
    for (int j = 0; j < N; ++j) {
      const A d = values[k * N + j] - mean;
      if constexpr (kCorrects) residual += d;
      square += d * d;
    }
  }
  square = block_sum(square);
  if constexpr (kCorrects) residual = block_sum(residual);
  if (threadIdx.x != 0) return;
  const A total = static_cast<A>(count);
  parts[blockIdx.x] = kCorrects ? correct_moments(total, A(1) / total, mean, square, residual)
                                : Moments<A>{total, mean, square};
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
  const A var = moments.m2 / moments.count;
  if (mean != nullptr) mean[row] = norm_saved_mean(moments.mean, var);
  rstd[row] = A(1) / sqrt(var + eps);
}

}  // namespace gradus
