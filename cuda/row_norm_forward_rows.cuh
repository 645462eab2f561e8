// Layer and RMS normalization forward on CUDA of rows that threads of a block have in registers.
#pragma once

#include "core/ops/normalization.h"
#include "cuda/context.h"
#include "cuda/device/l2_policy.cuh"
#include "cuda/device/raw.cuh"
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

// gamma and beta of N columns from i on; kGiven: none is null.
template <int N, bool kMean, bool kGiven = false, class T>
__device__ __forceinline__ void load_parameters(const RowNormForward<T>& f, int64_t i,
                                                acc_t<T> (&gamma)[N], acc_t<T> (&beta)[N]) {
  using A = acc_t<T>;
  if constexpr (kGiven) {
    load_values<N>(gamma, f.gamma + i);
    if constexpr (kMean) load_values<N>(beta, f.beta + i);
  } else {
    load_parameter<N, 1>(gamma, f.gamma != nullptr ? f.gamma + i : nullptr, A(1), 0, 1, 1);
    if constexpr (kMean)
      load_parameter<N, 1>(beta, f.beta != nullptr ? f.beta + i : nullptr, A(0), 0, 1, 1);
  }
}

// rstd of neighbouring rows, which lane 0 saves with their means; x becomes x - mean. A thread
// holds K packs of each row: zeros where it does not have(k), and in all of a row where there are
// only `rows`.
template <int N, int K, int kRows, bool kMean, class T, class Sums, class Has>
__device__ __forceinline__ void centre_rows(const RowNormForward<T>& f, Sums& sum_rows, int64_t row,
                                            int rows, int lane, Has has,
                                            acc_t<T> (&x)[kRows][K * N], acc_t<T> (&rstd)[kRows]) {
  using A = acc_t<T>;
  const A m = static_cast<A>(f.m), reciprocal = A(1) / m;
  A mean[kRows] = {}, square[kRows] = {};
  if constexpr (kMean) {  // 1 mean
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < K * N; ++i) mean[r] += x[r][i];
    }
    sum_rows(mean);
#pragma unroll
    for (int r = 0; r < kRows; ++r) mean[r] = divide(mean[r], m, reciprocal);
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {  // 2 var
    if (!has(k)) continue;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = k * N; i < (k + 1) * N; ++i) {
        x[r][i] -= mean[r];
        square[r] += x[r][i] * x[r][i];
      }
    }
  }
  sum_rows(square);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const A var = square[r] * reciprocal;
    if constexpr (sizeof(T) == 2) {
      rstd[r] = rsqrtf(var + f.eps);  // within 2 ulp
    } else {
      rstd[r] = A(1) / sqrt(var + f.eps);
    }
    if (r < rows && lane == 0) {
      if constexpr (kMean) f.mean[row + r] = norm_saved_mean(mean[r], var);
      f.rstd[row + r] = rstd[r];
    }
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
  const RowStages<T, N, K, 1, detail::kRowNormThreads> stages(lane, lanes, packs);
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
    const auto has = [&](int k) { return lane + k * lanes < valid; };
    stages.wait(kStages - 1);
    A x[1][K * N] = {}, rstd[1];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (has(k)) load_values<N>(x[0] + k * N, stages.place(stage, k));
    }
    fetch(set + kStages * run.step, stage);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    centre_rows<N, K, 1, kMean>(f, sum_row, row, row < f.rows, lane, has, x, rstd);
#pragma unroll
    for (int k = 0; k < K; ++k) {  // y
      if (!has(k)) continue;
      const int64_t i = int64_t{lane + k * lanes} * N;
      write_y<N, kMean>(f, row, i, x[0] + k * N, A(0), rstd[0], gamma + k * N, beta + k * N);
    }
  }
}

// math   as above
// grid   a block of kLanes threads per kRows neighbouring rows
// passes 1: x from DRAM into registers, while other blocks of the multiprocessor add up and write
// bytes  fewest 2Eb = actual; gamma and beta per kRows rows, from the first-level cache. kLarge, x
//        does not fit L2: it keeps what it has of x all the same, so that y leaves in longer runs
// needs  K·N·kLanes >= m, N | m, kLanes > 32; kWhole: m = K·N·kLanes, kRows | rows, gamma and beta
// order  as above
template <class T, int N, int K, int kRows, bool kMean, int kLanes, bool kWhole, bool kLarge>
__global__ void __launch_bounds__(kLanes, detail::straight_blocks(kLanes, kRows))
    row_norm_forward_rows_straight(const RowNormForward<T> any) {
  using A = acc_t<T>;
  using Sums = RowSums<A, kRows, true, kLanes>;
  __shared__ typename Sums::Meeting meeting;
  Sums sum_rows(meeting, kLanes);
  RowNormForward<T> f = any;
  if constexpr (kWhole) f.m = K * N * kLanes;
  const int lane = static_cast<int>(threadIdx.x), packs = static_cast<int>(f.m / N);
  const int64_t row = int64_t{blockIdx.x} * kRows;
  const int rows = kWhole ? kRows : static_cast<int>(min(int64_t{kRows}, f.rows - row));
  const auto has = [&](int k) { return kWhole || lane + k * kLanes < packs; };
  const T* const from = f.x + row * f.m + lane * N;
  const L2Policy<kLarge ? Evict::last : Evict::normal> policy;
  wait_for_previous_kernel();
  start_next_kernel();
  Raw<T, N> in[kRows][K];
  A x[kRows][K * N], rstd[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      in[r][k].word = {};
      if (r < rows && has(k)) policy.load(in[r][k], from + r * f.m + k * kLanes * N);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int i = 0; i < K * N; ++i) x[r][i] = in[r][i / N][i % N];
  }
  centre_rows<N, K, kRows, kMean>(f, sum_rows, row, rows, lane, has, x, rstd);
#pragma unroll
  for (int k = 0; k < K; ++k) {  // y
    if (!has(k)) continue;
    const int64_t i = int64_t{lane + k * kLanes} * N;
    A gamma[N], beta[N];
    load_parameters<N, kMean, kWhole>(f, i, gamma, beta);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
      write_y<N, kMean>(f, row + r, i, x[r] + k * N, A(0), rstd[r], gamma, beta);
    }
  }
}

}  // namespace gradus
