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

// Writes the sums over a block's slots of dgamma and dbeta: each slot leaves its own in shared
// memory, which must have room for as many rows of them, and all threads add them up.
template <int N, int K, bool kMean, class T>
__device__ __forceinline__ void write_slots(const RowNormBackward<T>& f, const RowNormPlan& plan,
                                            int slot, int lane, int packs,
                                            const acc_t<T> (&dgamma)[K * N],
                                            const acc_t<T> (&dbeta)[K * N]) {
  using A = acc_t<T>;
  constexpr int kStep = N < kFullPack<A> ? N : kFullPack<A>;
  A* const sums = reinterpret_cast<A*>(dynamic_shared());
  const int m = packs * N, columns = kRowNormPlanes<kMean> * m;
  __syncthreads();  // rows may still be read there
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int pack = lane + k * plan.lanes;
    if (pack >= packs) continue;
    A* const to = sums + slot * columns + pack * N;
    store_run<N>(to, dgamma + k * N);
    if constexpr (kMean) store_run<N>(to + m, dbeta + k * N);
  }
  __syncthreads();
  A* const part = f.parts + int64_t{blockIdx.x} * columns;
  for (int i = threadIdx.x * kStep; i < columns; i += blockDim.x * kStep) {
    A sum[kStep] = {}, value[kStep];
    for (int k = 0; k < plan.slots; ++k) {
      load_values<kStep>(value, sums + k * columns + i);
#pragma unroll
      for (int j = 0; j < kStep; ++j) sum[j] += value[j];
    }
    store_run<kStep>(part + i, sum);
  }
}

// xhat and dy of a pack of a row that is in shared memory.
template <int N, class Stages, class A>
__device__ __forceinline__ void load_terms(A* xhat, A* dy, const Stages& stages, int stage, int k,
                                           A mean, A rstd) {
  load_values<N>(xhat, stages.place(stage, k, 0));
  load_values<N>(dy, stages.place(stage, k, 1));
#pragma unroll
  for (int j = 0; j < N; ++j) xhat[j] = norm_xhat(xhat[j], mean, rstd);
}

// math   d = dy·gamma, m1 = Σ d / m, m2 = Σ d·xhat / m, dx = rstd·(d - m1 - xhat·m2);
//        dgamma += dy·xhat, dbeta += dy over the run's rows
// grid   runs of rows, as many as a function of the shape says, `slots` at a time; a thread owns
//        the columns of its packs
// passes 1: x and dy from DRAM through shared memory into registers
// bytes  fewest 3Eb = actual, beside a part of dgamma and dbeta per run (1 % at 32768 x 4096)
// smem   kStages rows of x and dy per slot, as in the forward; then the slots' sums
// needs  K·N·lanes >= m, N | m, kStages = plan.stages
// order  a thread's values, then lanes and warps pairwise; for columns a slot's rows in
//        turn, then slots in turn, then runs: fixed by the plan
template <class T, int N, int K, RowGroup kGroup, bool kMean, int kStages,
          int kThreads = detail::kRowNormThreads>
__global__ void __launch_bounds__(kThreads, 512 / kThreads)
    row_norm_backward_row_in_registers(const RowNormBackward<T> f, const RowNormPlan plan) {
  // Not a number of the plan: each wait would be a chain of branches, which takes a microsecond of
  // 22 at 8192 x 1024 in bf16.
  static_assert(kStages == detail::kRowFewStages || kStages == detail::row_stages(K));
  using A = acc_t<T>;
  using Sums = RowSums<A, 2, kGroup != RowGroup::lanes>;
  __shared__ typename Sums::Meeting meeting;
  Sums sum_row(meeting, plan.lanes);
  const int lanes = plan.lanes, slot = threadIdx.x / lanes;
  const int lane = threadIdx.x & (lanes - 1);
  const int packs = static_cast<int>(f.m / N);
  const RowRun run = row_run(f.rows, plan);
  // The rows of this slot are `stride` apart; others of the block may have one more of them.
  const int64_t stride = run.step * plan.slots, step = stride * f.m;
  const int turns = static_cast<int>((run.end - run.set + run.step - 1) / run.step);
  int64_t row = run.set * plan.slots + slot, at = row * f.m;
  const int own_turns = turns - (row + (turns - 1) * stride >= f.rows ? 1 : 0);
  const RowStages<T, N, K, 2, kThreads> stages(lane, lanes, packs);
  A next_mean = A(0), next_rstd = A(0);
  const auto fetch_statistics = [&](int turn) {
    if (turn >= own_turns) return;
    if constexpr (kMean) next_mean = f.mean[row];
    next_rstd = f.rstd[row];
    row += stride;
  };
  wait_for_previous_kernel();
#pragma unroll
  for (int i = 0; i < kStages; ++i) stages.fetch({f.x, f.dy}, at + i * step, i < own_turns, i);
  fetch_statistics(0);
  A gamma[K * N], dgamma[K * N] = {}, dbeta[K * N] = {};
  load_parameter<N, K>(gamma, f.gamma, A(1), lane, lanes, packs);
  const A reciprocal = A(1) / static_cast<A>(f.m);
  int stage = 0;
  for (int turn = 0; turn < turns; ++turn, at += step) {
    const int valid = turn < own_turns ? packs : 0;
    const A mean = next_mean, rstd = next_rstd;
    stages.wait(kStages - 1);
    A xhat[K * N], d[K * N], sums[2] = {A(0), A(0)};
#pragma unroll
    for (int k = 0; k < K; ++k) {  // 1 m1, m2, dgamma, dbeta
      if (lane + k * lanes >= valid) continue;
      load_terms<N>(xhat + k * N, d + k * N, stages, stage, k, mean, rstd);
#pragma unroll
      for (int i = k * N; i < (k + 1) * N; ++i) {
        dbeta[i] += d[i];
        dgamma[i] += d[i] * xhat[i];
        d[i] *= gamma[i];
        sums[0] += d[i];
        sums[1] += d[i] * xhat[i];
      }
    }
    stages.fetch({f.x, f.dy}, at + kStages * step, turn + kStages < own_turns, stage);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    fetch_statistics(turn + 1);
    if (f.dx == nullptr) continue;
    sum_row(sums);
    const A m1 = kMean ? sums[0] * reciprocal : A(0), m2 = sums[1] * reciprocal;
#pragma unroll
    for (int k = 0; k < K; ++k) {  // 3 write
      if (lane + k * lanes >= valid) continue;
      A dx[N];
#pragma unroll
      for (int j = 0; j < N; ++j) dx[j] = norm_dx(d[k * N + j], xhat[k * N + j], rstd, m1, m2);
      store_rounded(f.dx + at + (lane + k * lanes) * N, dx);
    }
  }
  if (f.parts == nullptr) return;
  start_next_kernel();
  write_slots<N, K, kMean>(f, plan, slot, lane, packs, dgamma, dbeta);
}

// dx of a row whose x and dy are in shared memory.
template <int N, int K, class T, class Stages, class A>
__device__ __forceinline__ void write_row(T* dx, const Stages& stages, int stage, int lane,
                                          int lanes, int packs, const A (&gamma)[K * N], A mean,
                                          A rstd, A m1, A m2) {
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (lane + k * lanes >= packs) continue;
    A xhat[N], d[N], out[N];
    load_terms<N>(xhat, d, stages, stage, k, mean, rstd);
#pragma unroll
    for (int j = 0; j < N; ++j) out[j] = norm_dx(d[j] * gamma[k * N + j], xhat[j], rstd, m1, m2);
    store_rounded(dx + (lane + k * lanes) * N, out);
  }
}

// math   as above
// grid   a row is a block's or a cluster's, which takes a run of them; a thread owns the columns of
//        its packs
// passes 1: x and dy from DRAM into shared memory, whence they are read twice; the sums of a row
//        are on their way while dx of the row before is written and the next row is added up
// bytes  as above
// smem   cluster_stages() rows of x and dy
// needs  K·N·lanes·cluster >= m, N | m
// order  a thread's values, then lanes and warps pairwise, then blocks in turn; for columns rows in
//        turn, then runs: fixed by the plan
template <class T, int N, int K, bool kMean>
__global__ void __launch_bounds__(detail::kRowNormBlockThreads, 1)
    row_norm_backward_row_in_cluster(const RowNormBackward<T> f, const RowNormPlan plan) {
  using A = acc_t<T>;
  constexpr int kStages = detail::cluster_stages(sizeof(T) * N * K);
  __shared__ typename RowSums<A, 2, true>::Meeting meeting;
  __shared__ typename ClusterSums<A, 2>::Mail mail;
  RowSums<A, 2, true> sum_block(meeting, plan.lanes);
  ClusterSums<A, 2> sum_row(mail, plan.cluster);
  const int lanes = plan.lanes * plan.cluster, packs = static_cast<int>(f.m / N);
  const int lane = static_cast<int>(threadIdx.x + (blockIdx.x & (plan.cluster - 1)) * plan.lanes);
  const RowRun run = row_run(f.rows, plan);
  const RowStages<T, N, K, 2, detail::kRowNormBlockThreads> stages(lane, lanes, packs);
  const auto fetch = [&](int64_t row, int stage) {
    stages.fetch({f.x, f.dy}, row * f.m, row < run.end, stage);
  };
  const auto following = [](int stage) { return stage + 1 == kStages ? 0 : stage + 1; };
  wait_for_previous_kernel();
  start_next_kernel();
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) fetch(run.set + i * run.step, i);
  A gamma[K * N], dgamma[K * N] = {}, dbeta[K * N] = {};
  load_parameter<N, K>(gamma, f.gamma, A(1), lane, lanes, packs);
  const A reciprocal = A(1) / static_cast<A>(f.m);
  A mean = A(0), rstd = A(0), next_mean = A(0), next_rstd = A(0), sums[2] = {};
  const auto fetch_statistics = [&](int64_t row) {
    if (row >= run.end) return;
    if constexpr (kMean) next_mean = f.mean[row];
    next_rstd = f.rstd[row];
  };
  fetch_statistics(run.set);
  const auto write_dx = [&](int64_t row, int stage) {
    const A m1 = kMean ? sums[0] * reciprocal : A(0), m2 = sums[1] * reciprocal;
    write_row<N, K>(f.dx + row * f.m, stages, stage, lane, lanes, packs, gamma, mean, rstd, m1, m2);
  };
  int stage = 0, before = kStages - 1;
  for (int64_t row = run.set; row < run.end; row += run.step) {
    const A row_mean = next_mean, row_rstd = next_rstd;
    fetch_statistics(row + run.step);
    stages.wait(kStages - 2);
    A own[2] = {A(0), A(0)};
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (lane + k * lanes >= packs) continue;
      A xhat[N], d[N];
      load_terms<N>(xhat, d, stages, stage, k, row_mean, row_rstd);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        dgamma[k * N + j] += d[j] * xhat[j];
        dbeta[k * N + j] += d[j];
        d[j] *= gamma[k * N + j];
        own[0] += d[j];
        own[1] += d[j] * xhat[j];
      }
    }
    if (f.dx != nullptr) {
      if (row != run.set) sum_row.receive(sums);
      sum_block(own);
      sum_row.send(own);
      if (row != run.set) write_dx(row - run.step, before);
    }
    mean = row_mean, rstd = row_rstd;
    fetch(row + (kStages - 1) * run.step, before);
    before = stage;
    stage = following(stage);
  }
  if (f.dx != nullptr && run.set < run.end) {
    sum_row.receive(sums);
    const int64_t rows = (run.end - run.set + run.step - 1) / run.step;
    write_dx(run.set + (rows - 1) * run.step, before);
  }
  if (f.parts == nullptr) return;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int pack = lane + k * lanes;
    if (pack < packs)
      write_part<N, kMean>(f, blockIdx.x / plan.cluster, pack * N, dgamma + k * N, dbeta + k * N);
  }
}

// math   dgamma, dbeta [m] = Σ parts, in order
// grid   kDown warps of a block share the parts of 32 columns
// bytes  the parts, which the kernel before has left in L2
// order  a warp's parts in turn, then warps pairwise
template <class A, int kDown>
__global__ void __launch_bounds__(1024)
    row_norm_sum_parts(const A* parts, int64_t count, int64_t columns, int64_t m, A* dgamma,
                       A* dbeta) {
  constexpr int kAcross = kWarp / kDown;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t first = (int64_t{blockIdx.x} * kAcross + warp / kDown) * kWarp;
  const int64_t column = first + lane;
  const auto write = [&](int64_t i, A sum) {
    if (i < m) {
      if (dgamma != nullptr) dgamma[i] = sum;
    } else if (i < columns && dbeta != nullptr) {
      dbeta[i - m] = sum;
    }
  };
  wait_for_previous_kernel();
  start_next_kernel();
  const A sum = reduce_strided(parts + column, warp % kDown, column < columns ? count : 0, kDown,
                               columns, SumOp{}, A(0));
  if constexpr (kDown == 1) return write(column, sum);
  static_assert(kDown == 1 || kDown == kWarp);
  __shared__ A of_warp[kWarp][kWarp + 1];
  of_warp[lane][warp] = sum;
  __syncthreads();
  const A total = warp_sum(of_warp[warp][lane]);  // of column `warp` of the block
  if (lane == 0) write(first + warp, total);
}

template <bool kMean, class T>
void launch_sum_parts(Cuda& cuda, const RowNormBackward<T>& f, int64_t count) {
  if (f.parts == nullptr) return;
  const int64_t columns = kRowNormPlanes<kMean> * f.m;
  const bool few = count <= kWarp;
  const LaunchShape shape{
      .grid = dim3(exact_blocks(ceil_div(columns, few ? 1024 : kWarp), "row_norm")),
      .threads = 1024};
  launch_overlapping(cuda, shape,
                     few ? row_norm_sum_parts<acc_t<T>, 1> : row_norm_sum_parts<acc_t<T>, kWarp>,
                     f.parts, count, columns, f.m, f.dgamma, f.dbeta);
}

}  // namespace gradus
