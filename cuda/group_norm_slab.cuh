// Group normalization of contiguous tensors with the sets held in shared memory.
#pragma once

#include "core/ops/group_norm.h"
#include "cuda/device/cluster.cuh"
#include "cuda/device/norm.cuh"
#include "cuda/device/quotient.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/shared.cuh"
#include "cuda/device/stream.cuh"
#include "cuda/group_norm_plan.h"
#include "cuda/launch_kernel.cuh"

namespace gradus {

// Σ dy and Σ dy·xhat of (part of) one channel of one sample.
template <class A>
struct ChannelSums {
  A dy, dy_xhat;
};
struct AddChannelSums {
  template <class A>
  __device__ __forceinline__ ChannelSums<A> operator()(const ChannelSums<A>& a,
                                                       const ChannelSums<A>& b) const {
    return {a.dy + b.dy, a.dy_xhat + b.dy_xhat};
  }
};

template <class T>
struct SlabForward {
  using A = acc_t<T>;
  const T* x;
  T* y;
  const A *gamma, *beta;  // null: 1 and 0
  A *mean, *rstd, *var;   // var may be null
  Moments<A>* parts;      // [n, pieces, g]: written in place of y and statistics, if given
  A eps;
  GroupNormSlab plan;
};

template <class T>
struct SlabBackward {
  using A = acc_t<T>;
  const T *x, *dy;
  T* dx;  // null: not wanted
  const A *gamma, *mean, *rstd;
  ChannelSums<A>* parts;  // [n, segments, c]; null: not wanted
  GroupNormSlab plan;
};

// What one thread works on.
struct SlabThread {
  int64_t set, base;  // the region's first element
  int64_t sample, group;
  int64_t channel;  // of the region's first row
  int piece, segment;
  int rows, cols;  // of the region; no rows beyond the last set
  int slot, lane;  // first row, first pack of each row
  int held;        // first element in shared memory
};

template <bool kBlock>
__device__ __forceinline__ SlabThread slab_thread(const GroupNormSlab& plan) {
  SlabThread at{};
  uint32_t thread = threadIdx.x;
  if constexpr (kBlock) {
    const uint32_t set = plan.by_pieces.quotient(blockIdx.x);
    at.set = set;
    at.piece = static_cast<int>(blockIdx.x - set * plan.by_pieces.divisor);
  } else {
    const uint32_t first = plan.by_lanes_per_set.quotient(thread);
    thread -= first * plan.by_lanes_per_set.divisor;
    at.set = int64_t{blockIdx.x} * plan.sets_per_block + first;
    at.held = static_cast<int>(first) * plan.rows_per_piece * plan.cols * plan.width;
  }
  at.slot = static_cast<int>(plan.by_lanes_per_row.quotient(thread));
  at.lane = static_cast<int>(thread) - at.slot * plan.lanes_per_row;
  if (at.set >= plan.sets) return at;
  at.cols = plan.cols;
  int64_t first_row = int64_t{at.piece} * plan.rows_per_piece;
  if (plan.segments > 1) {
    first_row = plan.by_segments.quotient(static_cast<uint32_t>(at.piece));
    at.segment = at.piece - static_cast<int>(first_row) * plan.segments;
    if (at.segment == plan.segments - 1) at.cols = plan.last_cols;
  }
  at.rows = static_cast<int>(min(int64_t{plan.rows_per_piece}, plan.rows - first_row));
  at.sample = quotient(plan.by_groups, at.set);
  at.group = at.set - at.sample * plan.groups;
  at.channel = at.group * plan.rows + first_row;
  at.base = at.set * plan.m + first_row * plan.s + int64_t{at.segment} * plan.cols * plan.width;
  return at;
}

// Calls f(element) for the first element of each of this thread's packs.
template <int N, class F>
__device__ __forceinline__ void for_each_pack(const GroupNormSlab& plan, const SlabThread& at,
                                              F&& f) {
  for (int row = at.slot; row < at.rows; row += plan.slots) {
    const int end = (row + 1) * at.cols;
#pragma unroll 4
    for (int i = row * at.cols + at.lane; i < end; i += plan.lanes_per_row) f(i * N);
  }
}

template <int N, class T>
__device__ __forceinline__ void hold_pack(T* held, const T* from) {
  if constexpr (sizeof(T) * N >= 4) {
    copy_async_once<sizeof(T) * N>(shared_address(held), from);
  } else {
    store_pack(held, load_pack<N>(from));
  }
}

// Σ over each aligned group of `width` lanes (a power of two up to 32).
template <class A>
__device__ __forceinline__ A lanes_sum(A value, int width) {
  if (width == kWarp) return warp_sum(value);
  for (int mask = 1; mask < width; mask *= 2) value += __shfl_xor_sync(kAllLanes, value, mask);
  return value;
}
template <class A>
__device__ __forceinline__ ChannelSums<A> lanes_sum(ChannelSums<A> sums, int width) {
  const auto add = [&](int mask) {
    sums.dy += __shfl_xor_sync(kAllLanes, sums.dy, mask);
    sums.dy_xhat += __shfl_xor_sync(kAllLanes, sums.dy_xhat, mask);
  };
  if (width == kWarp) {
#pragma unroll
    for (int mask = 1; mask < kWarp; mask *= 2) add(mask);
  } else {
    for (int mask = 1; mask < width; mask *= 2) add(mask);
  }
  return sums;
}

// The moments of what the lanes of a set (or a warp of its block) hold, in two passes. The residual
// Σ (x - centre) corrects the rounding of the first; that of 16-bit elements is coarser anyway.
template <class T, int N>
__device__ __forceinline__ Moments<acc_t<T>> held_moments(const GroupNormSlab& plan,
                                                          const SlabThread& at, const T* held,
                                                          int width) {
  using A = acc_t<T>;
  constexpr bool kCorrects = sizeof(T) > 2;
  A total = A(0);
  int packs = 0;
  for_each_pack<N>(plan, at, [&](int i) {
    const Raw<T, N> in = load_raw<N>(held + i);
#pragma unroll
    for (int j = 0; j < N; ++j) total += in[j];
    ++packs;
  });
  const A count = lanes_sum(static_cast<A>(packs * N), width);
  total = lanes_sum(total, width);
  const A share = count > A(0) ? A(1) / count : A(0);  // lanes without packs take part too
  const A centre = total * share;
  A residual = A(0), square = A(0);
  for_each_pack<N>(plan, at, [&](int i) {
    const Raw<T, N> in = load_raw<N>(held + i);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const A d = in[j] - centre;
      if constexpr (kCorrects) residual += d;
      square += d * d;
    }
  });
  square = lanes_sum(square, width);
  if constexpr (!kCorrects) return {count, centre, square};
  residual = lanes_sum(residual, width);
  const A shift = residual * share, surplus = residual * shift;
  // A sum of squares that is not finite stays so, whatever the surplus is.
  const A m2 = square - square == A(0) ? square - surplus : square;
  return {count, centre + shift, m2 < A(0) ? A(0) : m2};
}

struct FoldMoments {
  template <int Width, class A>
  static __device__ __forceinline__ Moments<A> fold(const Moments<A>& value) {
    return merge_lanes<Width>(value);
  }
};
struct FoldSums {
  template <int Width, class A>
  static __device__ __forceinline__ ChannelSums<A> fold(const ChannelSums<A>& value) {
    return {warp_sum<Width>(value.dy), warp_sum<Width>(value.dy_xhat)};
  }
};

// Merges what the warps of a block, and the blocks of a cluster, have found. All threads get the
// result. With a cluster, cluster_wait() must follow before the block ends.
template <class Fold, class V>
__device__ __forceinline__ V merge_set(const V& of_warp, bool has_cluster, int pieces) {
  constexpr int kMostWarps = static_cast<int>(detail::kMostWarps);
  __shared__ detail::SharedSlots<V> warps, cluster;
  const int lane = threadIdx.x % kWarp;
  if (lane == 0) warps.get()[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  const int warp = lane % kMostWarps;
  V value = warp < detail::warps_in_block() ? warps.get()[warp] : V{};
  value = Fold::template fold<kMostWarps>(value);
  if (!has_cluster) return value;
  if (threadIdx.x == 0) cluster.get()[0] = value;
  cluster_sync();
  const int rank = lane % kMaxCluster;
  value = rank < pieces ? in_block(cluster.get(), static_cast<unsigned>(rank))[0] : V{};
  cluster_arrive();
  return Fold::template fold<kMaxCluster>(value);
}

// math    y = (x - mean)·rstd·gamma + beta; core/ops/group_norm.h
// grid    one block per region of a set (a cluster, where a set has several), or per several sets
// passes  1 load, 2 moments, 3 write
// bytes   fewest 2Eb = actual; with `parts` x alone
// smem    the region: each thread reads only what it copied itself
// needs   packs of N aligned in x and y; at most 16 warps
// order   packs of a lane, lanes, warps, blocks of the cluster: fixed by the shape
template <class T, int N, bool kBlock>
__global__ void __launch_bounds__(512, 2)
    group_norm_forward_slab(const __grid_constant__ SlabForward<T> f) {
  using A = acc_t<T>;
  const SlabThread at = slab_thread<kBlock>(f.plan);
  T* held = reinterpret_cast<T*>(dynamic_shared()) + at.held;
  const T* x = f.x + at.base;
  wait_for_previous_kernel();
  for_each_pack<N>(f.plan, at, [&](int i) { hold_pack<N>(held + i, x + i); });  // 1 load
  commit_copies();
  wait_copies<0>();
  Moments<A> moments = held_moments<T, N>(f.plan, at, held,  // 2 moments
                                          kBlock ? kWarp : f.plan.lanes_per_set);
  const bool has_cluster = kBlock && f.parts == nullptr && f.plan.pieces > 1;
  if constexpr (kBlock) {
    moments = merge_set<FoldMoments>(moments, has_cluster, f.plan.pieces);
    if (f.parts != nullptr) {
      const int64_t part = (at.sample * f.plan.pieces + at.piece) * f.plan.groups + at.group;
      if (threadIdx.x == 0) f.parts[part] = moments;
      return;
    }
  }
  const A var = moments.m2 / moments.count;
  const A rstd = A(1) / sqrt(var + f.eps);
  if (at.slot == 0 && at.lane == 0 && at.rows > 0 && at.piece == 0) {
    f.mean[at.set] = norm_saved_mean(moments.mean, var);
    f.rstd[at.set] = rstd;
    if (f.var != nullptr) f.var[at.set] = var;
  }
  T* y = f.y + at.base;
  for (int row = at.slot; row < at.rows; row += f.plan.slots) {  // 3 write
    const A scale = rstd * (f.gamma != nullptr ? f.gamma[at.channel + row] : A(1));
    const A beta = f.beta != nullptr ? f.beta[at.channel + row] : A(0);
    const int end = (row + 1) * at.cols;
#pragma unroll 4
    for (int i = row * at.cols + at.lane; i < end; i += f.plan.lanes_per_row) {
      const Raw<T, N> in = load_raw<N>(held + i * N);
      A out[N];
#pragma unroll
      for (int j = 0; j < N; ++j) out[j] = norm_scaled(in[j], moments.mean, scale, beta);
      store_rounded(y + i * N, out);
    }
  }
  if (has_cluster) cluster_wait();
}

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
                                         const T* dy, acc_t<T> mean, acc_t<T> rstd, acc_t<T> m1,
                                         acc_t<T> m2, acc_t<T> first_gamma) {
  using A = acc_t<T>;
  T* dx = b.dx + at.base;
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
// smem    the regions of x and of dy: each thread reads only what it copied itself
// needs   packs of N aligned in x, dy and dx; at most 16 warps
// order   packs of a lane, lanes, warps, blocks of the cluster: fixed by the shape
template <class T, int N, bool kBlock>
__global__ void __launch_bounds__(512, 2)
    group_norm_backward_slab(const __grid_constant__ SlabBackward<T> b, bool only_parts) {
  using A = acc_t<T>;
  __shared__ ChannelSums<A> of_warp[16];
  const GroupNormSlab& plan = b.plan;
  const SlabThread at = slab_thread<kBlock>(plan);
  T* x = reinterpret_cast<T*>(dynamic_shared()) + at.held;
  T* dy = x + plan.tensor_bytes / static_cast<int>(sizeof(T));
  wait_for_previous_kernel();
  for_each_pack<N>(plan, at, [&](int i) {  // 1 load
    hold_pack<N>(x + i, b.x + at.base + i);
    hold_pack<N>(dy + i, b.dy + at.base + i);
  });
  commit_copies();
  const bool is_set = at.set < plan.sets;
  const A mean = is_set ? b.mean[at.set] : A(0), rstd = is_set ? b.rstd[at.set] : A(0);
  const A gamma = row_gamma(b, at, at.slot);
  ChannelSums<A>* parts = b.parts;
  if (parts != nullptr) parts += (at.sample * plan.segments + at.segment) * plan.groups * plan.rows;
  wait_copies<0>();
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
    write_dx<T, N>(b, at, x, dy, mean, scale, d.dy * share, d.dy_xhat * rstd * share, gamma);
  }
  if (has_cluster) cluster_wait();
}

}  // namespace gradus
