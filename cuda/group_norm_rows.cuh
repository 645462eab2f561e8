// Group normalization of contiguous tensors whose sets are two to four rows, each of which a warp
// has in registers: 32 groups of 64 or 128 channels of small maps.
#pragma once

#include "cuda/group_norm_slab_backward.cuh"

namespace gradus {

// A warp's row: a lane has its packs lane, lane + 32, ...
struct SetRow {
  int64_t set, channel;
  int64_t at;  // the lane's first element
  int lane, row, rows;
};

template <int N>
__device__ __forceinline__ SetRow set_row(const GroupNormSlab& plan) {
  SetRow r;
  r.lane = static_cast<int>(threadIdx.x) % kWarp;
  r.row = static_cast<int>(threadIdx.x) / kWarp;
  r.rows = static_cast<int>(plan.rows);
  r.set = blockIdx.x;
  const int64_t group = r.set - quotient(plan.by_groups, r.set) * plan.groups;
  r.channel = group * r.rows + r.row;
  r.at = r.set * plan.m + r.row * plan.s + r.lane * N;
  return r;
}

// math    y = (x - mean)·rstd·gamma + beta; core/ops/group_norm.h
// grid    a block per set, a warp per row
// passes  1 load, 2 moments, 3 write
// bytes   fewest 2Eb = actual
// smem    the moments of the rows
// needs   rows of at most K packs per lane, aligned in x and y
// order   packs of a lane, lanes, rows: fixed by the shape
template <class T, int N, int K>
__global__ void __launch_bounds__(GroupNormSlab::kRowThreads, K > 4 ? 9 : 12)
    group_norm_forward_warp_of_set(const __grid_constant__ SlabForward<T> f) {
  using A = acc_t<T>;
  __shared__ detail::SharedSlots<Moments<A>> slots;
  Moments<A>* const of_row = slots.get();
  const SetRow r = set_row<N>(f.plan);
  const int packs = f.plan.cols;
  wait_for_previous_kernel();
  Raw<T, N> in[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {  // 1 load
    if (r.lane + k * kWarp < packs) in[k].load(f.x + r.at + k * kWarp * N);
  }
  start_next_kernel();
  const A gamma = f.gamma != nullptr ? f.gamma[r.channel] : A(1);
  const A beta = f.beta != nullptr ? f.beta[r.channel] : A(0);
  const auto each = [&](auto&& take) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (r.lane + k * kWarp < packs) take(in[k]);
    }
  };
  const Moments<A> own = lanes_moments<T>(each, kWarp);  // 2 moments
  if (r.lane == 0) of_row[r.row] = own;
  __syncthreads();
  // The rows are equally long. About the first one's mean, so that of equal means it is theirs.
  A shift = A(0), m2 = A(0);
  for (int row = 1; row < r.rows; ++row) shift += of_row[row].mean - of_row[0].mean;
  const A mean = of_row[0].mean + shift / static_cast<A>(r.rows);
  for (int row = 0; row < r.rows; ++row) {
    const A d = of_row[row].mean - mean;
    m2 += of_row[row].m2 + own.count * d * d;
  }
  const Moments<A> moments{own.count * static_cast<A>(r.rows), mean, m2};
  const A scale = finish_set(f, r.set, moments, threadIdx.x == 0) * gamma;
#pragma unroll
  for (int k = 0; k < K; ++k) {  // 3 write
    if (r.lane + k * kWarp >= packs) break;
    A out[N];
#pragma unroll
    for (int j = 0; j < N; ++j) out[j] = norm_scaled(in[k][j], mean, scale, beta);
    store_rounded(f.y + r.at + k * kWarp * N, out);
  }
}

// math    dx = rstd·(d - m1 - xhat·m2), d = gamma·dy; core/ops/group_norm.h
// grid    as the forward kernel
// passes  1 load, 2 sums, 3 write
// bytes   fewest 3Eb = actual (parts: 2 numbers per sample and channel); without dx x and dy alone
// smem    the sums of the rows
// needs   as the forward kernel, in x, dy and dx
// order   packs of a lane, lanes, rows: fixed by the shape
template <class T, int N, int K>
__global__ void __launch_bounds__(GroupNormSlab::kRowThreads, K > 4 ? 5 : 9)
    group_norm_backward_warp_of_set(const __grid_constant__ SlabBackward<T> b) {
  using A = acc_t<T>;
  __shared__ detail::SharedSlots<ChannelSums<A>> slots;
  ChannelSums<A>* const of_row = slots.get();
  const SetRow r = set_row<N>(b.plan);
  const int packs = b.plan.cols;
  wait_for_previous_kernel();
  start_next_kernel();
  Raw<T, N> x[K], dy[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {  // 1 load
    if (r.lane + k * kWarp >= packs) continue;
    x[k].load(b.x + r.at + k * kWarp * N);
    dy[k].load(b.dy + r.at + k * kWarp * N);
  }
  const A mean = b.mean[r.set], rstd = b.rstd[r.set];
  const A gamma = b.gamma != nullptr ? b.gamma[r.channel] : A(1);
  ChannelSums<A> own{};
#pragma unroll
  for (int k = 0; k < K; ++k) {  // 2 sums
    if (r.lane + k * kWarp >= packs) continue;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const A d = dy[k][j];
      own.dy += d;
      own.dy_xhat += d * (x[k][j] - mean);
    }
  }
  own = lanes_sum(own, kWarp);
  if (r.lane == 0) {
    of_row[r.row] = {gamma * own.dy, gamma * own.dy_xhat};
    if (b.parts != nullptr) {
      const int64_t sample = quotient(b.plan.by_groups, r.set);
      b.parts[sample * b.plan.groups * r.rows + r.channel] = {own.dy, own.dy_xhat * rstd};
    }
  }
  if (b.dx == nullptr) return;
  __syncthreads();
  ChannelSums<A> d{};
  for (int row = 0; row < r.rows; ++row) d = AddChannelSums{}(d, of_row[row]);
  const A share = A(1) / static_cast<A>(b.plan.m);
  const A m1 = d.dy * share, m2 = d.dy_xhat * rstd * share;
  const NormGradient<A> gradient{mean, rstd * gamma, rstd * m1, rstd * m2 * rstd};
#pragma unroll
  for (int k = 0; k < K; ++k) {  // 3 write
    if (r.lane + k * kWarp >= packs) break;
    A out[N];
#pragma unroll
    for (int j = 0; j < N; ++j) out[j] = gradient(x[k][j], dy[k][j]);
    store_rounded(b.dx + r.at + k * kWarp * N, out);
  }
}

}  // namespace gradus
