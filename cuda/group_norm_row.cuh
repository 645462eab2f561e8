// Group normalization of contiguous tensors whose sets are single rows that a warp has in
// registers: instance normalization of small maps.
#pragma once

#include "cuda/group_norm_slab.cuh"

namespace gradus {

// math    y = (x - mean)·rstd·gamma + beta; core/ops/group_norm.h
// grid    a warp per set
// passes  1 load, 2 moments, 3 write
// bytes   fewest 2Eb = actual
// needs   sets of one row of at most K packs per lane, aligned in x and y
// order   packs of a lane, lanes: as group_norm_forward_slab
template <class T, int N, int K>
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
  Raw<T, N> in[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {  // 1 load
    if (lane + k * kWarp < packs) in[k].load(x + k * kWarp * N);
  }
  const A gamma = f.gamma != nullptr ? f.gamma[channel] : A(1);
  const A beta = f.beta != nullptr ? f.beta[channel] : A(0);
  const auto each = [&](auto&& take) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (lane + k * kWarp < packs) take(in[k]);
    }
  };
  const Moments<A> moments = lanes_moments<T, N>(each, kWarp);  // 2 moments
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

}  // namespace gradus
