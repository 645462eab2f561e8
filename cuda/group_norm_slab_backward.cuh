// The backward pass of group normalization of contiguous tensors with the sets held in shared
// memory.
#pragma once

#include "cuda/group_norm_slab.cuh"

namespace gradus {

template <class T>
struct SlabBackward {
  using A = acc_t<T>;
  const T *x, *dy;
  T* dx;  // null: not wanted
  const A *gamma, *mean, *rstd;
  ChannelSums<A>* parts;  // [n, segments, c]; null: not wanted
  GroupNormSlab plan;
};

// gamma of this thread's row, 1 where there is none.
template <class T>
__device__ __forceinline__ acc_t<T> row_gamma(const SlabBackward<T>& b, const SlabThread& at,
                                              int row) {
  return b.gamma != nullptr && row < at.rows ? b.gamma[at.channel + row] : acc_t<T>(1);
}

template <class A>
struct SlabSums {
  ChannelSums<A> d;    // Σ gamma·dy and Σ gamma·dy·(x - mean) of a lane, over all its rows
  ChannelSums<A> row;  // Σ dy and Σ dy·(x - mean) of a warp, of its last row
};

// The sums of this thread's rows; stores those of a channel where one warp or less holds its row.
template <class T, int N>
__device__ __forceinline__ SlabSums<acc_t<T>> held_sums(const SlabBackward<T>& b,
                                                        const SlabThread& at, const T* x,
                                                        const T* dy, acc_t<T> mean,
                                                        ChannelSums<acc_t<T>>* parts, acc_t<T> rstd,
                                                        acc_t<T> first_gamma) {
  using A = acc_t<T>;
  SlabSums<A> sums{};
  A next_gamma = first_gamma;
  const int width = min(b.plan.lanes_per_row, kWarp);
  for (int first = 0; first < b.plan.rows_per_piece; first += b.plan.slots) {  // all lanes alike
    const int row = first + at.slot;
    const A gamma = next_gamma;
    next_gamma = row_gamma(b, at, row + b.plan.slots);
    A dy_sum = A(0), dy_x_sum = A(0);
    if (row < at.rows) {
      const int end = (row + 1) * at.cols;
#pragma unroll 4
      for (int i = row * at.cols + at.lane; i < end; i += b.plan.lanes_per_row) {
        const Raw<T, N> x_in = load_raw<N>(x + i * N), dy_in = load_raw<N>(dy + i * N);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const A d = dy_in[j];
          dy_sum += d;
          dy_x_sum += d * (x_in[j] - mean);
        }
      }
      sums.d = {sums.d.dy + gamma * dy_sum, sums.d.dy_xhat + gamma * dy_x_sum};
    }
    if (parts == nullptr) continue;
    sums.row = lanes_sum(ChannelSums<A>{dy_sum, dy_x_sum}, width);
    if (b.plan.lanes_per_row <= kWarp && at.lane == 0 && row < at.rows)
      parts[at.channel + row] = {sums.row.dy, sums.row.dy_xhat * rstd};
  }
  return sums;
}

template <class T, int N>
__device__ __forceinline__ void write_dx(const SlabBackward<T>& b, const SlabThread& at, const T* x,
                                         const T* dy, T* dx, acc_t<T> mean, acc_t<T> rstd,
                                         acc_t<T> m1, acc_t<T> m2, acc_t<T> first_gamma) {
  using A = acc_t<T>;
  A next_gamma = first_gamma;
  for (int row = at.slot; row < at.rows; row += b.plan.slots) {
    const A scale = rstd * next_gamma;
    next_gamma = row_gamma(b, at, row + b.plan.slots);
    const NormGradient<A> gradient{mean, scale, rstd * m1, rstd * m2 * rstd};
    // Packs are read several at a time, before a store that might change them, for all the compiler
    // knows.
    constexpr int kBatch = 4;
    const int end = (row + 1) * at.cols, step = b.plan.lanes_per_row;
    for (int first = row * at.cols + at.lane; first < end; first += kBatch * step) {
      Raw<T, N> x_in[kBatch], dy_in[kBatch];
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        if (first + u * step >= end) continue;
        x_in[u].load(x + (first + u * step) * N);
        dy_in[u].load(dy + (first + u * step) * N);
      }
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        if (first + u * step >= end) continue;
        A out[N];
#pragma unroll
        for (int j = 0; j < N; ++j) out[j] = gradient(x_in[u][j], dy_in[u][j]);
        store_rounded(dx + (first + u * step) * N, out);
      }
    }
  }
}

// math    dx = rstd·(d - m1 - xhat·m2), d = gamma·dy; core/ops/group_norm.h
// grid    as the forward kernel
// passes  1 load, 2 sums, 3 write
// bytes   fewest 3Eb = actual (parts: 2 numbers per sample and channel); without dx x and dy alone
// smem    the regions of x and of dy, as in the forward kernel
// needs   packs of N aligned in x, dy and dx; at most 16 warps
// order   packs of a lane, lanes, warps, blocks of the cluster: fixed by the shape
template <class T, int N, bool kBlock, Evict kEvict>
__global__ void __launch_bounds__(512, 2)
    group_norm_backward_slab(const __grid_constant__ SlabBackward<T> b, bool only_parts) {
  using A = acc_t<T>;
  __shared__ ChannelSums<A> of_warp[16];
  const GroupNormSlab& plan = b.plan;
  const SlabThread at = slab_thread<kBlock>(plan);
  constexpr bool kRuns = N == 1;
  const SlabRun run = slab_run<kBlock>(plan, at);
  T* const shared = reinterpret_cast<T*>(dynamic_shared());
  T* const region = shared + (kRuns ? place_in_pack(b.x + run.base) : 0);
  T* const dy_region = shared + plan.tensor_bytes / static_cast<int>(sizeof(T)) +
                       (kRuns ? place_in_pack(b.dy + run.base) : 0);
  T *const x = region + at.held, *const dy = dy_region + at.held;
  const L2Policy<kEvict> policy;
  wait_for_previous_kernel();
  if constexpr (kRuns) {  // 1 load
    hold_run(region, b.x + run.base, run.count, policy);
    hold_run(dy_region, b.dy + run.base, run.count, policy);
  } else {
    for_each_pack<N>(plan, at, [&](int i) {
      hold_pack<N>(x + i, b.x + at.base + i, policy);
      hold_pack<N>(dy + i, b.dy + at.base + i, policy);
    });
  }
  commit_copies();
  const bool is_set = at.set < plan.sets;
  const A mean = is_set ? b.mean[at.set] : A(0), rstd = is_set ? b.rstd[at.set] : A(0);
  const A gamma = row_gamma(b, at, at.slot);
  ChannelSums<A>* parts = b.parts;
  if (parts != nullptr) parts += (at.sample * plan.segments + at.segment) * plan.groups * plan.rows;
  wait_copies<0>();
  if constexpr (kRuns) __syncthreads();
  const SlabSums<A> sums = held_sums<T, N>(b, at, x, dy, mean, parts, rstd, gamma);  // 2 sums
  const int width = kBlock ? kWarp : plan.lanes_per_set;
  ChannelSums<A> d = lanes_sum(sums.d, width);
  const bool has_cluster = kBlock && !only_parts && plan.pieces > 1;
  if constexpr (kBlock) {
    const int warp = threadIdx.x / kWarp, warps_per_row = plan.lanes_per_row / kWarp;
    if (threadIdx.x % kWarp == 0) of_warp[warp] = sums.row;
    d = merge_set<FoldSums>(d, has_cluster, plan.pieces);
    if (parts != nullptr && warps_per_row > 1 && at.lane == 0 && at.slot < at.rows) {
      ChannelSums<A> row{};
      for (int i = warp; i < warp + warps_per_row; ++i)
        row = {row.dy + of_warp[i].dy, row.dy_xhat + of_warp[i].dy_xhat};
      parts[at.channel + at.slot] = {row.dy, row.dy_xhat * rstd};
    }
    if (only_parts) return;
  }
  start_next_kernel();
  if (b.dx != nullptr) {  // 3 write; of one element dx is 0, whatever d - m1 rounds to
    const A share = A(1) / static_cast<A>(plan.m), scale = plan.m > 1 ? rstd : A(0);
    T* const dx = kRuns ? x : b.dx + at.base;
    write_dx<T, N>(b, at, x, dy, dx, mean, scale, d.dy * share, d.dy_xhat * rstd * share, gamma);
    if constexpr (kRuns) {
      __syncthreads();
      store_run(b.dx + run.base, region, run.count);
    }
  }
  if (has_cluster) cluster_wait();
}

}  // namespace gradus
