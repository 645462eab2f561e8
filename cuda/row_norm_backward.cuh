// Layer and RMS normalization backward on CUDA over the rows of x [rows, m], with a mean (kMean) or
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
struct RowNormBackward {
  using A = acc_t<T>;
  const T *x, *dy;
  const A *gamma, *mean, *rstd;  // gamma null: 1; mean null without one
  T* dx;                         // null: not wanted
  A *dgamma, *dbeta;             // the same
  int64_t rows, m;
  A* parts = nullptr;  // [blocks, planes, m]: dgamma and dbeta of each block's rows; null: unwanted
};

// The planes of a part: dgamma, and with a mean dbeta.
template <bool kMean>
inline constexpr int kRowNormPlanes = kMean ? 2 : 1;

// Writes a block's part of dgamma and dbeta for the N columns from i on.
template <int N, bool kMean, class T>
__device__ __forceinline__ void write_part(const RowNormBackward<T>& f, int64_t part, int64_t i,
                                           const acc_t<T>* dgamma, const acc_t<T>* dbeta) {
  acc_t<T>* to = f.parts + part * kRowNormPlanes<kMean> * f.m + i;
  store_run<N>(to, dgamma);
  if constexpr (kMean) store_run<N>(to + f.m, dbeta);
}

// Adds the values of all slots of a block onto slot 0's: the upper half onto the lower, repeatedly.
template <class A, int Count>
__device__ __forceinline__ void add_slots(A (&values)[Count], int lanes, int slots) {
  A* shared = reinterpret_cast<A*>(dynamic_shared());
  const int slot = threadIdx.x / lanes;
  for (int half = slots / 2; half > 0; half /= 2) {
    A* place = shared + (threadIdx.x & (half * lanes - 1));
    __syncthreads();
    if (slot >= half && slot < 2 * half) {
#pragma unroll
      for (int i = 0; i < Count; ++i) place[i * half * lanes] = values[i];
    }
    __syncthreads();
    if (slot < half) {
#pragma unroll
      for (int i = 0; i < Count; ++i) values[i] += place[i * half * lanes];
    }
  }
}

// math   d = dy·gamma, m1 = Σ d / m, m2 = Σ d·xhat / m, dx = rstd·(d - m1 - xhat·m2);
//        dgamma += dy·xhat, dbeta += dy over the run's rows
// grid   runs of rows, as many as a function of the shape says, `slots` at a time; a thread owns
//        the columns of its packs
// passes 1: x and dy from DRAM through shared memory into registers
// bytes  fewest 3Eb = actual, beside a part of dgamma and dbeta per run (1 % at 32768 x 4096)
// smem   row_stages() rows of x and dy per slot, as in the forward; then the slots' sums
// needs  K·N·lanes·cluster >= m, N | m
// order  a thread's values, then lanes, warps and blocks pairwise; for columns a slot's rows in
//        turn, then slots pairwise, then runs: fixed by the plan
template <class T, int N, int K, RowGroup kGroup, bool kMean>
__global__ void __launch_bounds__(kGroup == RowGroup::blocks ? detail::kRowNormBlockThreads
                                                             : detail::kRowNormThreads,
                                  kGroup == RowGroup::blocks ? 1 : 2)
    row_norm_backward_row_in_registers(const RowNormBackward<T> f, const RowNormPlan plan) {
  using A = acc_t<T>;
  using Sums = RowSums<A, 2, kGroup != RowGroup::lanes, kGroup == RowGroup::blocks>;
  constexpr int kStages = detail::row_stages(K);
  __shared__ typename Sums::Meeting meeting;
  Sums sum_row(meeting, plan.lanes, plan.cluster);
  const int slot = threadIdx.x / plan.lanes, lanes = plan.lanes * plan.cluster;
  int lane = threadIdx.x & (plan.lanes - 1);
  if constexpr (kGroup == RowGroup::blocks) lane += (blockIdx.x & (plan.cluster - 1)) * plan.lanes;
  const int packs = static_cast<int>(f.m / N);
  const RowRun run = row_run(f.rows, plan);
  const RowStages<T, N, K, 2, kStages> stages(lane, lanes, packs);
  const auto fetch = [&](int64_t set, int stage) {
    const int64_t row = set * plan.slots + slot;
    stages.fetch({f.x, f.dy}, row * f.m, set < run.end && row < f.rows, stage);
  };
  A next_mean = A(0), next_rstd = A(0);
  const auto fetch_statistics = [&](int64_t set) {
    const int64_t row = set * plan.slots + slot;
    if (set >= run.end || row >= f.rows) return;
    if constexpr (kMean) next_mean = f.mean[row];
    next_rstd = f.rstd[row];
  };
#pragma unroll
  for (int i = 0; i < kStages; ++i) fetch(run.set + i * run.step, i);
  fetch_statistics(run.set);
  A gamma[K * N], dgamma[K * N] = {}, dbeta[K * N] = {};
  load_parameter<N, K>(gamma, f.gamma, A(1), lane, lanes, packs);
  const A reciprocal = A(1) / static_cast<A>(f.m);
  int stage = 0;
  for (int64_t set = run.set; set < run.end; set += run.step) {
    const int64_t row = set * plan.slots + slot;
    const int valid = row < f.rows ? packs : 0;
    const A mean = next_mean, rstd = next_rstd;
    stages.wait();
    A xhat[K * N] = {}, d[K * N] = {}, sums[2] = {A(0), A(0)};
#pragma unroll
    for (int k = 0; k < K; ++k) {  // 1 m1, m2, dgamma, dbeta
      if (lane + k * lanes >= valid) continue;
      load_values<N>(xhat + k * N, stages.place(stage, k, 0));
      load_values<N>(d + k * N, stages.place(stage, k, 1));
#pragma unroll
      for (int i = k * N; i < (k + 1) * N; ++i) {
        xhat[i] = norm_xhat(xhat[i], mean, rstd);
        dgamma[i] += d[i] * xhat[i];
        dbeta[i] += d[i];
        d[i] *= gamma[i];
        sums[0] += d[i];
        sums[1] += d[i] * xhat[i];
      }
    }
    fetch(set + kStages * run.step, stage);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    fetch_statistics(set + run.step);
    if (f.dx == nullptr) continue;
    sum_row(sums);
    const A m1 = kMean ? sums[0] * reciprocal : A(0), m2 = sums[1] * reciprocal;
#pragma unroll
    for (int k = 0; k < K; ++k) {  // 3 write
      if (lane + k * lanes >= valid) continue;
      A dx[N];
#pragma unroll
      for (int j = 0; j < N; ++j) dx[j] = norm_dx(d[k * N + j], xhat[k * N + j], rstd, m1, m2);
      store_values<N>(f.dx + row * f.m + (lane + k * lanes) * N, dx);
    }
  }
  if (f.parts == nullptr) return;
  start_next_kernel();
  add_slots(dgamma, plan.lanes, plan.slots);
  if constexpr (kMean) add_slots(dbeta, plan.lanes, plan.slots);
  if (slot != 0) return;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int pack = lane + k * lanes;
    if (pack < packs)
      write_part<N, kMean>(f, blockIdx.x / plan.cluster, pack * N, dgamma + k * N, dbeta + k * N);
  }
}

// math   dgamma, dbeta [m] = Σ parts, in order
// grid   one block per 32 columns, its warps share the parts
// bytes  the parts, which the kernel before has left in L2
// order  a warp's parts in turn, then warps pairwise
template <class A>
__global__ void __launch_bounds__(1024)
    row_norm_sum_parts(const A* parts, int64_t count, int64_t columns, int64_t m, A* dgamma,
                       A* dbeta) {
  __shared__ A of_warp[kWarp][kWarp + 1];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t column = int64_t{blockIdx.x} * kWarp + lane;
  A sum = A(0);
  wait_for_previous_kernel();
  if (column < columns) {
#pragma unroll 8
    for (int64_t part = warp; part < count; part += kWarp) sum += parts[part * columns + column];
  }
  of_warp[lane][warp] = sum;
  __syncthreads();
  sum = warp_sum(of_warp[warp][lane]);  // of column `warp` of the block
  const int64_t i = int64_t{blockIdx.x} * kWarp + warp;
  if (lane != 0 || i >= columns) return;
  if (i < m) {
    if (dgamma != nullptr) dgamma[i] = sum;
  } else if (dbeta != nullptr) {
    dbeta[i - m] = sum;
  }
}

template <bool kMean, class T>
void launch_sum_parts(Cuda& cuda, const RowNormBackward<T>& f, int64_t count) {
  if (f.parts == nullptr) return;
  const int64_t columns = kRowNormPlanes<kMean> * f.m;
  const LaunchShape shape{.grid = dim3(exact_blocks(ceil_div(columns, kWarp), "row_norm")),
                          .threads = 1024};
  launch_next_kernel(cuda, shape, row_norm_sum_parts<acc_t<T>>, f.parts, count, columns, f.m,
                     f.dgamma, f.dbeta);
}

}  // namespace gradus
