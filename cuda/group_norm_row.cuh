// Group normalization of contiguous tensors whose sets are single rows that a warp, or a block, has
// in registers: instance normalization.
#pragma once

#include "cuda/device/row_norm.cuh"
#include "cuda/group_norm_slab.cuh"

namespace gradus {

// math    y = (x - mean)·rstd·gamma + beta; core/ops/group_norm.h
// grid    a warp per set
// passes  1 load, 2 moments, 3 write
// bytes   fewest 2Eb = actual
// needs   sets of one row of at most K packs per lane, aligned in x and y
// order   packs of a lane, lanes: as group_norm_forward_slab
template <class T, int N, int K, Evict kEvict>
__global__ void __launch_bounds__(GroupNormSlab::kRowThreads, K > 4 ? 8 : 12)
    group_norm_forward_warp_per_row(const __grid_constant__ SlabForward<T> f) {
  using A = acc_t<T>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, packs = f.plan.cols;
  const int64_t set =
      int64_t{blockIdx.x} * (GroupNormSlab::kRowThreads / kWarp) + threadIdx.x / kWarp;
  wait_for_previous_kernel();
  if (set >= f.plan.sets) return;
  const int64_t channel = set - quotient(f.plan.by_groups, set) * f.plan.groups;
  const T* const x = f.x + set * f.plan.m + lane * N;
  const L2Policy<kEvict> policy;
  Raw<T, N> in[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {  // 1 load
    if (lane + k * kWarp < packs) policy.load(in[k], x + k * kWarp * N);
  }
  const A gamma = f.gamma != nullptr ? f.gamma[channel] : A(1);
  const A beta = f.beta != nullptr ? f.beta[channel] : A(0);
  const auto each = [&](auto&& take) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (lane + k * kWarp < packs) take(in[k]);
    }
  };
  const Moments<A> moments = lanes_moments<T>(each, kWarp);  // 2 moments
  const A scale = finish_set(f, set, moments, lane == 0) * gamma;
  T* const y = f.y + set * f.plan.m + lane * N;
#pragma unroll
  for (int k = 0; k < K; ++k) {  // 3 write
    if (lane + k * kWarp >= packs) break;
    A out[N];
#pragma unroll
    for (int j = 0; j < N; ++j) out[j] = norm_scaled(in[k][j], moments.mean, scale, beta);
    store_rounded(y + k * kWarp * N, out);
  }
}

// math    as above
// grid    a block per set
// passes  1 load, 2 moments, 3 write
// bytes   fewest 2Eb = actual
// needs   plan.is_block_row()
// order   packs of a thread, lanes, warps pairwise
template <class T>
__global__ void __launch_bounds__(GroupNormSlab::kBlockRowThreads, 8)
    group_norm_forward_block_per_row(const __grid_constant__ SlabForward<T> f) {
  using A = acc_t<T>;
  constexpr int N = kFullPack<T>, K = GroupNormSlab::kBlockRowPacks;
  constexpr int kThreads = GroupNormSlab::kBlockRowThreads;
  using Sums = RowSums<A, 1, true, kThreads>;
  __shared__ typename Sums::Meeting meeting;
  Sums sum_row(meeting, kThreads);
  const int thread = static_cast<int>(threadIdx.x), packs = f.plan.cols;
  const int64_t set = blockIdx.x;
  const int64_t channel = set - quotient(f.plan.by_groups, set) * f.plan.groups;
  const int64_t first = set * f.plan.m + thread * N;
  wait_for_previous_kernel();
  Raw<T, N> in[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {  // 1 load
    in[k].word = {};
    if (thread + k * kThreads < packs) in[k].load(f.x + first + k * kThreads * N);
  }
  const A gamma = f.gamma != nullptr ? f.gamma[channel] : A(1);
  const A beta = f.beta != nullptr ? f.beta[channel] : A(0);
  A x[K][N], mean[1] = {A(0)}, square[1] = {A(0)};
#pragma unroll
  for (int k = 0; k < K; ++k) {  // 2 moments
#pragma unroll
    for (int j = 0; j < N; ++j) {
      x[k][j] = in[k][j];
      mean[0] += x[k][j];
    }
  }
  sum_row(mean);
  const A m = static_cast<A>(f.plan.m);
  mean[0] = divide(mean[0], m, A(1) / m);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (thread + k * kThreads >= packs) break;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      x[k][j] -= mean[0];
      square[0] += x[k][j] * x[k][j];
    }
  }
  sum_row(square);
  const A scale = finish_set(f, set, Moments<A>{m, mean[0], square[0]}, thread == 0) * gamma;
#pragma unroll
  for (int k = 0; k < K; ++k) {  // 3 write
    if (thread + k * kThreads >= packs) break;
#pragma unroll
    for (int j = 0; j < N; ++j) x[k][j] = norm_scaled(x[k][j], A(0), scale, beta);
    store_rounded(f.y + first + k * kThreads * N, x[k]);
  }
}

}  // namespace gradus
