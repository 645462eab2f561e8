// Group normalization of contiguous tensors with the sets held in shared memory.
#pragma once

#include "core/ops/group_norm.h"
#include "cuda/device/cluster.cuh"
#include "cuda/device/l2_policy.cuh"
#include "cuda/device/norm.cuh"
#include "cuda/device/quotient.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/run.cuh"
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

// The block's elements, which are neighbours in memory. Packs of one element are not moved one by
// one, but as part of this run.
struct SlabRun {
  int64_t base;
  int count;
};
template <bool kBlock>
__device__ __forceinline__ SlabRun slab_run(const GroupNormSlab& plan, const SlabThread& at) {
  if constexpr (kBlock) return {at.base, at.rows * at.cols};
  const int64_t first = int64_t{blockIdx.x} * plan.sets_per_block;
  const int64_t sets = min(int64_t{plan.sets_per_block}, plan.sets - first);
  return {first * plan.m, static_cast<int>(sets * plan.m)};
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

template <int N, class T, Evict kEvict>
__device__ __forceinline__ void hold_pack(T* held, const T* from, L2Policy<kEvict> policy) {
  if constexpr (sizeof(T) * N >= 4) {
    policy.template copy_async<sizeof(T) * N>(shared_address(held), from);
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

// The moments of what the lanes of a set (or a warp of its block) hold, in two passes; each(f)
// calls f(pack) for a lane's packs. The residual Σ (x - centre) corrects the rounding of the first
// pass; that of 16-bit elements is coarser anyway.
template <class T, class Each>
__device__ __forceinline__ Moments<acc_t<T>> lanes_moments(Each&& each, int width) {
  using A = acc_t<T>;
  constexpr bool kCorrects = sizeof(T) > 2;
  A total = A(0);
  int own = 0;
  each([&]<int N>(const Raw<T, N>& in) {
#pragma unroll
    for (int j = 0; j < N; ++j) total += in[j];
    own += N;
  });
  const A count = lanes_sum(static_cast<A>(own), width);
  total = lanes_sum(total, width);
  const A share = count > A(0) ? A(1) / count : A(0);  // lanes without packs take part too
  const A centre = kCorrects || count == A(0) ? total * share : divide(total, count, share);
  A residual = A(0), square = A(0);
  each([&]<int N>(const Raw<T, N>& in) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const A d = in[j] - centre;
      if constexpr (kCorrects) residual += d;
      square += d * d;
    }
  });
  square = lanes_sum(square, width);
  if constexpr (!kCorrects) return {count, centre, square};
  return correct_moments(count, share, centre, square, lanes_sum(residual, width));
}

// Writes a set's statistics, where `writes`; returns rstd.
template <class T>
__device__ __forceinline__ acc_t<T> finish_set(const SlabForward<T>& f, int64_t set,
                                               const Moments<acc_t<T>>& moments, bool writes) {
  using A = acc_t<T>;
  const A var = moments.m2 / moments.count, rstd = A(1) / sqrt(var + f.eps);
  if (writes) {
    f.mean[set] = norm_saved_mean(moments.mean, var);
    f.rstd[set] = rstd;
    if (f.var != nullptr) f.var[set] = var;
  }
  return rstd;
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
// smem    the region: each thread reads only what it copied itself; of packs of one element the
//         block's run, which results replace
// needs   packs of N aligned in x and y; at most 16 warps
// order   packs of a lane, lanes, warps, blocks of the cluster: fixed by the shape
template <class T, int N, bool kBlock, Evict kEvict>
__global__ void __launch_bounds__(512, 2)
    group_norm_forward_slab(const __grid_constant__ SlabForward<T> f) {
  using A = acc_t<T>;
  const SlabThread at = slab_thread<kBlock>(f.plan);
  constexpr bool kRuns = N == 1;
  const SlabRun run = slab_run<kBlock>(f.plan, at);
  T* const region =
      reinterpret_cast<T*>(dynamic_shared()) + (kRuns ? place_in_pack(f.x + run.base) : 0);
  T* const held = region + at.held;
  const T* x = f.x + at.base;
  const L2Policy<kEvict> policy;
  wait_for_previous_kernel();
  if constexpr (kRuns) {  // 1 load
    hold_run(region, f.x + run.base, run.count, policy);
  } else {
    for_each_pack<N>(f.plan, at, [&](int i) { hold_pack<N>(held + i, x + i, policy); });
  }
  commit_copies();
  wait_copies<0>();
  if constexpr (kRuns) __syncthreads();
  const auto each = [&](auto&& take) {
    if constexpr (kRuns) {
      for_each_of_run(
          held, at.rows * at.cols, at.slot * f.plan.lanes_per_row + at.lane, f.plan.lanes_per_set,
          [&](int i) { take(load_raw<kFullPack<T>>(held + i)); },
          [&](int i) { take(load_raw<1>(held + i)); });
    } else {
      for_each_pack<N>(f.plan, at, [&](int i) { take(load_raw<N>(held + i)); });
    }
  };
  Moments<A> moments =  // 2 moments
      lanes_moments<T>(each, kBlock ? kWarp : f.plan.lanes_per_set);
  const bool has_cluster = kBlock && f.parts == nullptr && f.plan.pieces > 1;
  if constexpr (kBlock) {
    moments = merge_set<FoldMoments>(moments, has_cluster, f.plan.pieces);
    if (f.parts != nullptr) {
      const int64_t part = (at.sample * f.plan.pieces + at.piece) * f.plan.groups + at.group;
      if (threadIdx.x == 0) f.parts[part] = moments;
      return;
    }
  }
  const A rstd =
      finish_set(f, at.set, moments, at.slot == 0 && at.lane == 0 && at.rows > 0 && at.piece == 0);
  if constexpr (kRuns && !kBlock) __syncwarp();  // all have read what results are to replace
  T* y = kRuns ? held : f.y + at.base;
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
  if constexpr (kRuns) {
    __syncthreads();
    store_run(f.y + run.base, region, run.count);
  }
  if (has_cluster) cluster_wait();
}

}  // namespace gradus
