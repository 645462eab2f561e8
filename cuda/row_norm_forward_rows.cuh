// Layer and RMS normalization forward on CUDA of rows that threads of a block have in registers.
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
  store_rounded(f.y + row * f.m + i, y);
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

// mean and rstd of a row, which lane 0 also saves: a thread holds `x` of packs lane, lane + lanes,
// ..., K at most, zeros from pack `valid` on, which is 0 where there is no such row.
template <int N, int K, bool kMean, class T, class Sums>
__device__ __forceinline__ void row_statistics(const RowNormForward<T>& f, Sums& sum_row,
                                               int64_t row, int lane, int lanes, int valid,
                                               const acc_t<T>* x, acc_t<T>& mean, acc_t<T>& rstd) {
  using A = acc_t<T>;
  const A m = static_cast<A>(f.m), reciprocal = A(1) / m;
  A sum[1] = {A(0)}, square[1] = {A(0)};
  if constexpr (kMean) {  // 1 mean
#pragma unroll
    for (int i = 0; i < K * N; ++i) sum[0] += x[i];
    sum_row(sum);
  }
  mean = kMean ? divide(sum[0], m, reciprocal) : A(0);
#pragma unroll
  for (int k = 0; k < K; ++k) {  // 2 var
    if (lane + k * lanes >= valid) continue;
#pragma unroll
    for (int j = 0; j < N; ++j) square[0] += (x[k * N + j] - mean) * (x[k * N + j] - mean);
  }
  sum_row(square);
  const A var = square[0] * reciprocal;
  rstd = A(1) / sqrt(var + f.eps);
  if (valid != 0 && lane == 0) {
    if constexpr (kMean) f.mean[row] = norm_saved_mean(mean, var);
    f.rstd[row] = rstd;
  }
}

// math   mean = Σ x / m, var = Σ (x - mean)² / m, y = (x - mean)·rstd·gamma + beta
// grid   runs of rows, `slots` at a time; a thread owns the columns of its packs
// passes 1: x from DRAM through shared memory into registers; both sums are taken there
// bytes  fewest 2Eb = actual, beside gamma and beta once per run, mostly from the first-level cache
// smem   row_stages() rows per slot: the next rows are fetched while this one is reduced
// needs  K·N·lanes >= m, N | m; kLanes: 0 or lanes, of one slot
// order  a thread's values, then lanes and warps pairwise: fixed by the plan
template <class T, int N, int K, RowGroup kGroup, bool kMean, int kLanes>
__global__ void __launch_bounds__(detail::kRowNormThreads, K* N > 16 ? 2 : 3)
    row_norm_forward_row_in_registers(const RowNormForward<T> f, const RowNormPlan plan) {
  using A = acc_t<T>;
  using Sums = RowSums<A, 1, kGroup != RowGroup::lanes, kLanes>;
  constexpr int kStages = detail::row_stages(K);
  __shared__ typename Sums::Meeting meeting;
  Sums sum_row(meeting, plan.lanes);
  const int lanes = kLanes != 0 ? kLanes : plan.lanes, slot = threadIdx.x / lanes;
  const int lane = threadIdx.x & (lanes - 1);
  const int packs = static_cast<int>(f.m / N);
  const RowRun run = row_run(f.rows, plan);
  const RowStages<T, N, K, 1> stages(lane, lanes, packs);
  const auto fetch = [&](int64_t set, int stage) {
    const int64_t row = set * plan.slots + slot;
    stages.fetch({f.x}, row * f.m, set < run.end && row < f.rows, stage);
  };
  wait_for_previous_kernel();
  start_next_kernel();
#pragma unroll
  for (int i = 0; i < kStages; ++i) fetch(run.set + i * run.step, i);
  A gamma[K * N], beta[K * N];
  load_parameter<N, K>(gamma, f.gamma, A(1), lane, lanes, packs);
  if constexpr (kMean) load_parameter<N, K>(beta, f.beta, A(0), lane, lanes, packs);
  int stage = 0;
  for (int64_t set = run.set; set < run.end; set += run.step) {
    const int64_t row = set * plan.slots + slot;
    const int valid = row < f.rows ? packs : 0;
    stages.wait(kStages - 1);
    A x[K * N] = {};
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (lane + k * lanes < valid) load_values<N>(x + k * N, stages.place(stage, k));
    }
    fetch(set + kStages * run.step, stage);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    A mean, rstd;
    row_statistics<N, K, kMean>(f, sum_row, row, lane, lanes, valid, x, mean, rstd);
#pragma unroll
    for (int k = 0; k < K; ++k) {  // y
      const int pack = lane + k * lanes;
      if (pack < valid)
        write_y<N, kMean>(f, row, int64_t{pack} * N, x + k * N, mean, rstd, gamma + k * N,
                          beta + k * N);
    }
  }
}

// math   as above
// grid   a block of kLanes threads per row
// passes 1: x from DRAM into registers, while other blocks of the multiprocessor add up and write
// bytes  fewest 2Eb = actual; gamma and beta per row from the first-level cache
// needs  K·N·kLanes >= m, N | m, kLanes > 32; elements that are their own acc_t
// order  as above
template <class T, int N, int K, bool kMean, int kLanes>
__global__ void __launch_bounds__(kLanes, detail::kRowStraightThreads / kLanes)
    row_norm_forward_row_straight(const RowNormForward<T> f) {
  using A = acc_t<T>;
  using Sums = RowSums<A, 1, true, kLanes>;
  __shared__ typename Sums::Meeting meeting;
  Sums sum_row(meeting, kLanes);
  const int lane = static_cast<int>(threadIdx.x), packs = static_cast<int>(f.m / N);
  const int64_t row = blockIdx.x;
  const T* const from = f.x + row * f.m + lane * N;
  wait_for_previous_kernel();
  start_next_kernel();
  A x[K * N] = {};
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (lane + k * kLanes >= packs) continue;
    const Pack<T, N> in = load_pack<N>(from + k * kLanes * N);
#pragma unroll
    for (int j = 0; j < N; ++j) x[k * N + j] = in[j];
  }
  A mean, rstd;
  row_statistics<N, K, kMean>(f, sum_row, row, lane, kLanes, packs, x, mean, rstd);
#pragma unroll
  for (int k = 0; k < K; ++k) {  // y
    if (lane + k * kLanes >= packs) continue;
    write_y<N, kMean>(f, row, int64_t{lane + k * kLanes} * N, x + k * N, mean, rstd);
  }
}

}  // namespace gradus
