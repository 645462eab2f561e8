// Layer and RMS normalization forward on CUDA over the rows of x [rows, m], with a mean (kMean) or
// without.
#pragma once

#include "core/ops/normalization.h"
#include "cuda/context.h"
#include "cuda/device/row_norm.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/row_norm_plan.h"
#include "cuda/row_norm_split.cuh"

namespace gradus {

template <class T>
struct RowNormForward {
  using A = acc_t<T>;
  const T* x;
  const A *gamma, *beta;  // null: 1, 0
  T* y;
  A *mean, *rstd;  // mean null without one
  int64_t rows, m;
  A eps;
};

// y of N values of a row.
template <int N, bool kMean, class T>
__device__ __forceinline__ void write_y(const RowNormForward<T>& f, int64_t row, int64_t i,
                                        const acc_t<T>* x, acc_t<T> mean, acc_t<T> rstd,
                                        const acc_t<T>* gamma, const acc_t<T>* beta) {
  acc_t<T> y[N];
#pragma unroll
  for (int j = 0; j < N; ++j) {
    y[j] = norm_xhat(x[j], mean, rstd) * gamma[j];
    if constexpr (kMean) y[j] += beta[j];
  }
  store_values<N>(f.y + row * f.m + i, y);
}

// The same with gamma and beta from memory: where a thread takes other columns every time.
template <int N, bool kMean, class T>
__device__ __forceinline__ void write_y(const RowNormForward<T>& f, int64_t row, int64_t i,
                                        const acc_t<T>* x, acc_t<T> mean, acc_t<T> rstd) {
  using A = acc_t<T>;
  A gamma[N], beta[N] = {};
  load_parameter<N, 1>(gamma, f.gamma != nullptr ? f.gamma + i : nullptr, A(1), 0, 1, 1);
  if constexpr (kMean)
    load_parameter<N, 1>(beta, f.beta != nullptr ? f.beta + i : nullptr, A(0), 0, 1, 1);
  write_y<N, kMean>(f, row, i, x, mean, rstd, gamma, beta);
}

// sum / m to the last place, by way of 1 / m; not for infinite sums.
template <class A>
__device__ __forceinline__ A divide(A sum, A m, A reciprocal) {
  const A quotient = sum * reciprocal;
  return fma(fma(-quotient, m, sum), reciprocal, quotient);
}

// math   mean = Σ x / m, var = Σ (x - mean)² / m, y = (x - mean)·rstd·gamma + beta
// grid   runs of rows, `slots` at a time; a thread owns the columns of its packs
// passes 1: x from DRAM through shared memory into registers; both sums are taken there
// bytes  fewest 2Eb = actual, beside gamma and beta once per run, mostly from the first-level cache
// smem   row_stages() rows per slot: the next rows are fetched while this one is reduced
// needs  K·N·lanes·cluster >= m, N | m
// order  a thread's values, then lanes, warps and blocks pairwise: fixed by the plan
template <class T, int N, int K, RowGroup kGroup, bool kMean>
__global__ void __launch_bounds__(kGroup == RowGroup::blocks ? detail::kRowNormBlockThreads
                                                             : detail::kRowNormThreads,
                                  kGroup == RowGroup::blocks ? 1 : 3)
    row_norm_forward_row_in_registers(const RowNormForward<T> f, const RowNormPlan plan) {
  using A = acc_t<T>;
  using Sums = RowSums<A, 1, kGroup != RowGroup::lanes, kGroup == RowGroup::blocks>;
  constexpr int kStages = detail::row_stages(K);
  __shared__ typename Sums::Meeting meeting;
  Sums sum_row(meeting, plan.lanes, plan.cluster);
  const int slot = threadIdx.x / plan.lanes, lanes = plan.lanes * plan.cluster;
  int lane = threadIdx.x & (plan.lanes - 1);
  if constexpr (kGroup == RowGroup::blocks) lane += (blockIdx.x & (plan.cluster - 1)) * plan.lanes;
  const int packs = static_cast<int>(f.m / N);
  const RowRun run = row_run(f.rows, plan);
  const RowStages<T, N, K, 1, kStages> stages(lane, lanes, packs);
  const auto fetch = [&](int64_t set, int stage) {
    const int64_t row = set * plan.slots + slot;
    stages.fetch({f.x}, row * f.m, set < run.end && row < f.rows, stage);
  };
#pragma unroll
  for (int i = 0; i < kStages; ++i) fetch(run.set + i * run.step, i);
  A gamma[K * N], beta[K * N];
  load_parameter<N, K>(gamma, f.gamma, A(1), lane, lanes, packs);
  if constexpr (kMean) load_parameter<N, K>(beta, f.beta, A(0), lane, lanes, packs);
  const A m = static_cast<A>(f.m), reciprocal = A(1) / m;
  int stage = 0;
  for (int64_t set = run.set; set < run.end; set += run.step) {
    const int64_t row = set * plan.slots + slot;
    const int valid = row < f.rows ? packs : 0;
    stages.wait();
    A x[K * N] = {};
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (lane + k * lanes < valid) load_values<N>(x + k * N, stages.place(stage, k));
    }
    fetch(set + kStages * run.step, stage);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    A sum[1] = {A(0)}, square[1] = {A(0)};
    if constexpr (kMean) {  // 1 mean
#pragma unroll
      for (int i = 0; i < K * N; ++i) sum[0] += x[i];
      sum_row(sum);
    }
    const A mean = kMean ? divide(sum[0], m, reciprocal) : A(0);
#pragma unroll
    for (int k = 0; k < K; ++k) {  // 2 var
      if (lane + k * lanes >= valid) continue;
#pragma unroll
      for (int j = 0; j < N; ++j) square[0] += (x[k * N + j] - mean) * (x[k * N + j] - mean);
    }
    sum_row(square);
    const A rstd = A(1) / sqrt(square[0] * reciprocal + f.eps);
    if (valid != 0 && lane == 0) {
      if constexpr (kMean) f.mean[row] = mean;
      f.rstd[row] = rstd;
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {  // 3 write
      const int pack = lane + k * lanes;
      if (pack < valid)
        write_y<N, kMean>(f, row, int64_t{pack} * N, x + k * N, mean, rstd, gamma + k * N,
                          beta + k * N);
    }
  }
}

// math   as above
// grid   a block holds one row at a time, and takes a run of them
// passes 1 over x in DRAM, 2 or 3 over it in shared memory
// bytes  fewest 2Eb = actual
// smem   a row; each pack of the next row is fetched as soon as its place has been read last
// order  a thread's packs in turn, then lanes pairwise, then warps pairwise: fixed by the plan
template <class T, int N, bool kMean>
__global__ void __launch_bounds__(1024)
    row_norm_forward_row_in_shared(const RowNormForward<T> f, const RowNormPlan plan) {
  using A = acc_t<T>;
  using Sums = RowSums<A, 1, true, false>;
  __shared__ typename Sums::Meeting meeting;
  Sums sum_row(meeting, plan.lanes, 1);
  const int packs = static_cast<int>(f.m / N), lanes = plan.lanes;
  const RowRun run = row_run(f.rows, plan);
  T* const kept = reinterpret_cast<T*>(dynamic_shared());
  for (int pack = threadIdx.x; pack < packs; pack += lanes)
    start_copy<N>(kept + pack * N, f.x + run.set * f.m + pack * N);
  commit_copies();
  const A m = static_cast<A>(f.m), reciprocal = A(1) / m;
  for (int64_t row = run.set; row < run.end; row += run.step) {
    wait_copies<0>();
    A x[N], sum[1] = {A(0)}, square[1] = {A(0)};
    if constexpr (kMean) {  // 1 mean
      for (int pack = threadIdx.x; pack < packs; pack += lanes) {
        load_values<N>(x, kept + pack * N);
#pragma unroll
        for (int j = 0; j < N; ++j) sum[0] += x[j];
      }
      sum_row(sum);
    }
    const A mean = kMean ? divide(sum[0], m, reciprocal) : A(0);
    for (int pack = threadIdx.x; pack < packs; pack += lanes) {  // 2 var
      load_values<N>(x, kept + pack * N);
#pragma unroll
      for (int j = 0; j < N; ++j) square[0] += (x[j] - mean) * (x[j] - mean);
    }
    sum_row(square);
    const A rstd = A(1) / sqrt(square[0] * reciprocal + f.eps);
    if (threadIdx.x == 0) {
      if constexpr (kMean) f.mean[row] = mean;
      f.rstd[row] = rstd;
    }
    for (int pack = threadIdx.x; pack < packs; pack += lanes) {  // 3 write
      load_values<N>(x, kept + pack * N);
      if (row + run.step < run.end)
        start_copy<N>(kept + pack * N, f.x + (row + run.step) * f.m + pack * N);
      write_y<N, kMean>(f, row, int64_t{pack} * N, x, mean, rstd);
    }
    commit_copies();
  }
}

// math   y = (x - mean)·rstd·gamma + beta, with the statistics of merge_moments
// grid   one block per chunk of a row
// bytes  2Eb; 3Eb with the first pass, whose rows are in L2 still while they are few and short
// order  element-wise
template <class T, int N, bool kMean>
__global__ void __launch_bounds__(SplitRowsPlan::kThreads)
    row_norm_forward_write_chunk(const RowNormForward<T> f, const SplitRowsPlan plan) {
  using A = acc_t<T>;
  const int64_t row = blockIdx.x / plan.chunks, chunk = blockIdx.x - row * plan.chunks;
  const int64_t begin = chunk * SplitRowsPlan::kChunk;
  const int64_t end = min(begin + SplitRowsPlan::kChunk, f.m);
  const A mean = kMean ? f.mean[row] : A(0), rstd = f.rstd[row];
  for (int64_t i = begin + threadIdx.x * N; i < end; i += SplitRowsPlan::kThreads * N) {
    A x[N];
    load_values<N>(x, f.x + row * f.m + i);
    write_y<N, kMean>(f, row, i, x, mean, rstd);
  }
}

template <class T, int N, bool kMean>
void launch_split_forward(Cuda& cuda, const RowNormForward<T>& f) {
  using A = acc_t<T>;
  const SplitRowsPlan plan = plan_split_rows(f.rows, f.m, N);
  const auto bytes = static_cast<size_t>(f.rows * plan.chunks) * sizeof(Moments<A>);
  auto* parts = static_cast<Moments<A>*>(cuda.workspace(bytes));
  const unsigned blocks = exact_blocks(f.rows * plan.chunks, "row_norm");
  constexpr int kThreads = SplitRowsPlan::kThreads;
  row_norm_chunk_moments<T, N, kMean>
      <<<blocks, kThreads, 0, cuda.stream()>>>(f.x, f.m, plan, parts);
  row_norm_merge_moments<A><<<exact_blocks(f.rows, "row_norm"), kThreads, 0, cuda.stream()>>>(
      parts, plan.chunks, f.mean, f.rstd, f.eps);
  row_norm_forward_write_chunk<T, N, kMean><<<blocks, kThreads, 0, cuda.stream()>>>(f, plan);
}

template <class T, int N, bool kMean>
void launch_forward(Cuda& cuda, const RowNormForward<T>& f) {
  const RowNormCard card = row_norm_card(cuda.info().compute_major, cuda.info().compute_minor);
  const RowNormPlan plan = plan_row_norm_forward(f.rows, f.m, sizeof(T), N, card);
  if (plan.group == RowGroup::split) return launch_split_forward<T, N, kMean>(cuda, f);
  if (plan.group == RowGroup::shared)
    return launch_rows(cuda, plan, row_norm_forward_row_in_shared<T, N, kMean>, f, plan);
  with_row_kernel<T, N>(plan, [&](auto packs, auto group) {
    launch_rows(cuda, plan, row_norm_forward_row_in_registers<T, N, packs(), group(), kMean>, f,
                plan);
  });
}

// y, mean and rstd of rows, with the widest access that x, y and the parameters allow.
template <bool kMean, class T>
void run_forward(Cuda& cuda, const RowNormForward<T>& f) {
  if (f.rows == 0 || f.m == 0) return;
  with_row_width<T>(f.m, {f.x, f.y}, {f.gamma, f.beta},
                    [&](auto width) { launch_forward<T, width(), kMean>(cuda, f); });
}

}  // namespace gradus
