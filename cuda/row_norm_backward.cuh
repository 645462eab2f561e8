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
#pragma unroll
  for (int j = 0; j < N; ++j) {
    to[j] = dgamma[j];
    if constexpr (kMean) to[f.m + j] = dbeta[j];
  }
}

// A thread's values of gamma, 1 where there is none.
template <int N, int K, class A>
__device__ __forceinline__ void load_gamma(A (&values)[K * N], const A* gamma, int lane, int lanes,
                                           int packs) {
#pragma unroll
  for (int k = 0; k < K; ++k) {
#pragma unroll
    for (int j = 0; j < N; ++j) values[k * N + j] = A(1);
    const int pack = lane + k * lanes;
    if (gamma != nullptr && pack < packs) load_values<N>(values + k * N, gamma + pack * N);
  }
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
//        dgamma += dy·xhat, dbeta += dy over the block's rows
// grid   `blocks` even parts of the rows, a function of the shape; `slots` rows at a time, `lanes`
//        threads hold a row and own its columns
// passes 1: x and dy from DRAM through shared memory into registers
// bytes  fewest 3Eb = actual, beside a part of dgamma and dbeta per block (1 % at 32768 x 4096).
//        Prediction there on an H100: >= 92 % of the copy bandwidth
// smem   two rows of x and dy per slot, as in the forward; then the slots' sums
// needs  K·N·lanes >= m, N | m
// order  a thread's values, then lanes pairwise, then warps pairwise; for columns a slot's rows in
//        turn, then slots pairwise, then blocks: fixed by the plan
template <class T, int N, int K, bool kWide, bool kMean>
__global__ void __launch_bounds__(kWide ? 512 : detail::kRowNormThreads, kWide ? 1 : 2)
    row_norm_backward_row_in_registers(const RowNormBackward<T> f, const RowNormPlan plan) {
  using A = acc_t<T>;
  using Sums = RowSums<A, 2, kWide>;
  __shared__ typename Sums::Meeting meeting;
  Sums sum_row(meeting, plan.lanes);
  const int lanes = plan.lanes, lane = threadIdx.x & (lanes - 1), slot = threadIdx.x / lanes;
  const int packs = static_cast<int>(f.m / N);
  const int64_t begin = f.rows * blockIdx.x / gridDim.x;
  const int64_t end = f.rows * (blockIdx.x + 1) / gridDim.x;
  const RowStages<T, N, K, 2> stages(lane, lanes, packs);
  const auto fetch = [&](int64_t row, int stage) {
    stages.fetch({f.x, f.dy}, row * f.m, row < end, stage);
  };
  A gamma[K * N], dgamma[K * N] = {}, dbeta[K * N] = {};
  load_gamma<N, K>(gamma, f.gamma, lane, lanes, packs);
  A next_mean = A(0), next_rstd = A(0);
  const auto fetch_statistics = [&](int64_t row) {
    if (row >= end) return;
    if constexpr (kMean) next_mean = f.mean[row];
    next_rstd = f.rstd[row];
  };
  fetch(begin + slot, 0);
  fetch(begin + slot + plan.slots, 1);
  fetch_statistics(begin + slot);
  int stage = 0;
  for (int64_t first = begin; first < end; first += plan.slots, stage ^= 1) {
    const int64_t row = first + slot;
    const int valid = row < end ? packs : 0;
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
    fetch(row + 2 * plan.slots, stage);
    fetch_statistics(row + plan.slots);
    if (f.dx == nullptr) continue;
    sum_row(sums);
    const A m = static_cast<A>(f.m), m1 = kMean ? sums[0] / m : A(0), m2 = sums[1] / m;
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
  add_slots(dgamma, lanes, plan.slots);
  if constexpr (kMean) add_slots(dbeta, lanes, plan.slots);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int pack = lane + k * lanes;
    if (slot == 0 && pack < packs)
      write_part<N, kMean>(f, blockIdx.x, pack * N, dgamma + k * N, dbeta + k * N);
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
  row_norm_sum_parts<<<exact_blocks(ceil_div(columns, kWarp), "row_norm"), 1024, 0,
                       cuda.stream()>>>(f.parts, count, columns, f.m, f.dgamma, f.dbeta);
}

}  // namespace gradus
