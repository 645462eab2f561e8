// Group normalization of channels-last tensors whose samples a block or a cluster holds in shared
// memory.
#include "cuda/device/shared.cuh"
#include "cuda/group_norm_launch.h"
#include "cuda/group_norm_samples.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {
namespace {

constexpr int kThreads = GroupNormHeld::kThreads;

// What one thread works on: a pack of channels, every `step`-th row of the block's.
struct HeldThread {
  int64_t sample, base;  // the block's first element
  int piece, rows;
  int row, step;  // first row
  int channel;
  bool active;
};

// The block's sums, behind the rows that it holds.
template <class A>
struct HeldSums {
  A* of_slot;   // [2, slots, c]
  A* of_c;      // [2, c]
  A* of_group;  // [2, groups]: what the other blocks of the cluster read
  A* of_set;    // [2, groups]
};

__device__ __forceinline__ HeldThread held_thread(const GroupNormHeld& plan, int width) {
  HeldThread at;
  const uint32_t sample = plan.by_pieces.quotient(blockIdx.x);
  const int first = threadIdx.x / plan.lanes, lane = threadIdx.x % plan.lanes;
  at.sample = sample;
  at.piece = static_cast<int>(blockIdx.x - sample * plan.by_pieces.divisor);
  at.rows = plan.rows_of(at.piece);
  at.base = (at.sample * plan.s + int64_t{at.piece} * plan.rows_per_piece) * plan.c;
  at.channel = lane * width;
  at.active = at.channel < plan.c;
  at.row = at.active ? first : at.rows;
  at.step = kThreads / plan.lanes;
  return at;
}

template <class A>
__device__ __forceinline__ HeldSums<A> held_sums(const GroupNormHeld& plan, int tensors) {
  A* first = reinterpret_cast<A*>(dynamic_shared() + tensors * plan.tensor_bytes);
  HeldSums<A> sums;
  sums.of_slot = first;
  sums.of_c = sums.of_slot + 2 * plan.slots * plan.c;
  sums.of_group = sums.of_c + 2 * plan.c;
  sums.of_set = sums.of_group + 2 * plan.groups;
  return sums;
}

// Calls f(element) for the first element of each of this thread's packs.
template <class F>
__device__ __forceinline__ void for_each_row(const GroupNormHeld& plan, const HeldThread& at,
                                             F&& f) {
#pragma unroll 4
  for (int row = at.row; row < at.rows; row += at.step) f(row * plan.c + at.channel);
}

// of_c[i, c] = Σ over the block's threads of `values` of channel c, for i = 0 and 1: lanes of a
// warp, then slots 0, 1, ... of the block.
template <int N, class A>
__device__ __forceinline__ void fold_columns(const GroupNormHeld& plan, const HeldThread& at,
                                             const HeldSums<A>& sums, A (&first)[N],
                                             A (&second)[N]) {
  const int width = max(plan.lanes, kWarp), slot = threadIdx.x / width;
  const int plane = plan.slots * plan.c;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    for (int mask = plan.lanes; mask < kWarp; mask *= 2) {
      first[j] += __shfl_xor_sync(kAllLanes, first[j], mask);
      second[j] += __shfl_xor_sync(kAllLanes, second[j], mask);
    }
    if (at.active && threadIdx.x % width < plan.lanes) {
      sums.of_slot[slot * plan.c + at.channel + j] = first[j];
      sums.of_slot[plane + slot * plan.c + at.channel + j] = second[j];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * plan.c; i += kThreads) {
    const int at_plane = i < plan.c ? i : plane + i - plan.c;
    A total = A(0);
    for (int k = 0; k < plan.slots; ++k) total += sums.of_slot[at_plane + k * plan.c];
    sums.of_c[i] = total;
  }
  __syncthreads();
}

// Calls use(group, Σ first, Σ second) once per group, over its channels c of term(c) = {first,
// second}; a barrier follows.
template <class A, class Term, class Use>
__device__ __forceinline__ void fold_groups(const GroupNormHeld& plan, Term&& term, Use&& use) {
  const int width = plan.lanes_per_group, lane = threadIdx.x % width;
  for (int from = 0; from < plan.groups; from += kThreads / width) {  // all threads alike
    const int group = from + threadIdx.x / width;
    A first = A(0), second = A(0);
    for (int k = lane; group < plan.groups && k < plan.channels; k += width) {
      const ChannelSums<A> value = term(group * plan.channels + k);
      first += value.dy, second += value.dy_xhat;
    }
    first = lanes_sum(first, width);
    second = lanes_sum(second, width);
    if (lane == 0 && group < plan.groups) use(group, first, second);
  }
  __syncthreads();
}

// Calls use(group, merged) once per group, merged over what gather(rank, group) finds in the blocks
// of the cluster; a barrier follows.
template <class Fold, class Gather, class Use>
__device__ __forceinline__ void merge_cluster(const GroupNormHeld& plan, Gather&& gather,
                                              Use&& use) {
  if (plan.pieces > 1) cluster_sync();
  const int rank = threadIdx.x % kMaxCluster;
  for (int from = 0; from < plan.groups; from += kThreads / kMaxCluster) {  // all threads alike
    const int group = from + threadIdx.x / kMaxCluster;
    decltype(gather(0, 0)) value{};
    if (rank < plan.pieces && group < plan.groups) value = gather(rank, group);
    value = Fold::template fold<kMaxCluster>(value);
    if (rank == 0 && group < plan.groups) use(group, value);
  }
  if (plan.pieces > 1) cluster_arrive();
  __syncthreads();
}

// math    y = (x - mean)·rstd·gamma + beta; core/ops/group_norm.h
// grid    one block per piece of a sample, the pieces of a sample one cluster
// passes  1 load, 2 mean of the block's groups, 3 squares about it, merged, 4 write
// bytes   fewest 2Eb = actual
// smem    the rows of the piece, and two sums per column and group
// needs   packs of N aligned in x and y
// order   rows of a thread, lanes, slots, channels, blocks: fixed by the shape
template <class T, int N>
__global__ void __launch_bounds__(kThreads, 2)
    group_norm_forward_held(const __grid_constant__ SlabForward<T> f,
                            const __grid_constant__ GroupNormHeld plan) {
  using A = acc_t<T>;
  const HeldThread at = held_thread(plan, N);
  const HeldSums<A> sums = held_sums<A>(plan, 1);
  T* held = reinterpret_cast<T*>(dynamic_shared());
  wait_for_previous_kernel();
  start_next_kernel();
  for_each_row(plan, at, [&](int i) { hold_pack<N>(held + i, f.x + at.base + i); });  // 1 load
  commit_copies();
  wait_copies<0>();
  A total[N] = {}, square[N] = {}, centre[N];
  for_each_row(plan, at, [&](int i) {  // 2 mean
    const Pack<T, N> in = load_pack<N>(held + i);
#pragma unroll
    for (int j = 0; j < N; ++j) total[j] += static_cast<A>(in[j]);
  });
  const auto of_channel = [&](int c) {
    return ChannelSums<A>{sums.of_c[c], sums.of_c[plan.c + c]};
  };
  const auto count_of = [&](int rank) { return A(plan.channels) * A(plan.rows_of(rank)); };
  const A count = count_of(at.piece), share = count > A(0) ? A(1) / count : A(0);
  fold_columns<N>(plan, at, sums, total, square);
  fold_groups<A>(plan, of_channel, [&](int group, A x, A) { sums.of_group[group] = x * share; });
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const uint32_t c = static_cast<uint32_t>(at.active ? at.channel + j : 0);
    centre[j] = sums.of_group[plan.by_channels.quotient(c)];
    total[j] = A(0);
  }
  for_each_row(plan, at, [&](int i) {  // 3 squares; Σ (x - centre) corrects the rounding of 2
    const Pack<T, N> in = load_pack<N>(held + i);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const A d = static_cast<A>(in[j]) - centre[j];
      total[j] += d;
      square[j] += d * d;
    }
  });
  fold_columns<N>(plan, at, sums, total, square);
  fold_groups<A>(plan, of_channel, [&](int group, A residual, A squares) {
    const A shift = residual * share;
    const A m2 = squares - squares == A(0) ? squares - residual * shift : squares;
    sums.of_group[group] += shift;
    sums.of_group[plan.groups + group] = m2 < A(0) ? A(0) : m2;
  });
  merge_cluster<FoldMoments>(
      plan,
      [&](int rank, int group) {
        const A* other = plan.pieces > 1 ? in_block(sums.of_group, rank) : sums.of_group;
        return Moments<A>{count_of(rank), other[group], other[plan.groups + group]};
      },
      [&](int group, const Moments<A>& moments) {
        const A var = moments.m2 / moments.count, rstd = A(1) / sqrt(var + f.eps);
        sums.of_set[group] = moments.mean;
        sums.of_set[plan.groups + group] = rstd;
        if (at.piece != 0) return;
        f.mean[at.sample * plan.groups + group] = norm_saved_mean(moments.mean, var);
        f.rstd[at.sample * plan.groups + group] = rstd;
        if (f.var != nullptr) f.var[at.sample * plan.groups + group] = var;
      });
  A scale[N], beta[N];
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const int c = at.active ? at.channel + j : 0;
    const uint32_t group = plan.by_channels.quotient(static_cast<uint32_t>(c));
    centre[j] = sums.of_set[group];
    scale[j] = sums.of_set[plan.groups + group] * (f.gamma != nullptr ? f.gamma[c] : A(1));
    beta[j] = f.beta != nullptr ? f.beta[c] : A(0);
  }
  for_each_row(plan, at, [&](int i) {  // 4 write
    const Pack<T, N> in = load_pack<N>(held + i);
    A out[N];
#pragma unroll
    for (int j = 0; j < N; ++j)
      out[j] = norm_scaled(static_cast<A>(in[j]), centre[j], scale[j], beta[j]);
    store_pack(f.y + at.base + i, round_pack<T, N>(out));
  });
  if (plan.pieces > 1) cluster_wait();
}

// math    dx = rstd·(d - m1 - xhat·m2), d = gamma·dy; core/ops/group_norm.h
// grid    as the forward kernel
// passes  1 load, 2 sums, merged, 3 write
// bytes   fewest 3Eb = actual (parts: 2 numbers per piece and channel)
// smem    the rows of the piece in x and dy, and two sums per column and group
// needs   packs of N aligned in x, dy and dx
// order   rows of a thread, lanes, slots, channels, blocks: fixed by the shape
template <class T, int N>
__global__ void __launch_bounds__(kThreads, 2)
    group_norm_backward_held(const __grid_constant__ SlabBackward<T> b,
                             const __grid_constant__ GroupNormHeld plan) {
  using A = acc_t<T>;
  const HeldThread at = held_thread(plan, N);
  const HeldSums<A> sums = held_sums<A>(plan, 2);
  T* x = reinterpret_cast<T*>(dynamic_shared());
  T* dy = x + plan.tensor_bytes / static_cast<int>(sizeof(T));
  wait_for_previous_kernel();
  start_next_kernel();
  for_each_row(plan, at, [&](int i) {  // 1 load
    hold_pack<N>(x + i, b.x + at.base + i);
    hold_pack<N>(dy + i, b.dy + at.base + i);
  });
  commit_copies();
  const int64_t first_set = at.sample * plan.groups;
  const auto group_of = [&](int c) { return plan.by_channels.quotient(static_cast<uint32_t>(c)); };
  A mean[N], dy_sum[N] = {}, dy_x[N] = {};
#pragma unroll
  for (int j = 0; j < N; ++j)
    mean[j] = b.mean[first_set + group_of(at.active ? at.channel + j : 0)];
  wait_copies<0>();
  for_each_row(plan, at, [&](int i) {  // 2 sums
    const Pack<T, N> x_in = load_pack<N>(x + i), dy_in = load_pack<N>(dy + i);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const A d = static_cast<A>(dy_in[j]);
      dy_sum[j] += d;
      dy_x[j] += d * (static_cast<A>(x_in[j]) - mean[j]);
    }
  });
  fold_columns<N>(plan, at, sums, dy_sum, dy_x);
  if (b.parts != nullptr) {
    for (int c = threadIdx.x; c < plan.c; c += kThreads)
      b.parts[int64_t{blockIdx.x} * plan.c + c] = {
          sums.of_c[c], sums.of_c[plan.c + c] * b.rstd[first_set + group_of(c)]};
  }
  if (b.dx == nullptr) return;
  fold_groups<A>(
      plan,
      [&](int c) {
        const A gamma = b.gamma != nullptr ? b.gamma[c] : A(1);
        return ChannelSums<A>{gamma * sums.of_c[c], gamma * sums.of_c[plan.c + c]};
      },
      [&](int group, A d, A d_x) {
        sums.of_group[group] = d;
        sums.of_group[plan.groups + group] = d_x;
      });
  merge_cluster<FoldSums>(
      plan,
      [&](int rank, int group) {
        const A* other = plan.pieces > 1 ? in_block(sums.of_group, rank) : sums.of_group;
        return ChannelSums<A>{other[group], other[plan.groups + group]};
      },
      [&](int group, const ChannelSums<A>& d) {
        const A rstd = b.rstd[first_set + group];
        const A m = static_cast<A>(plan.s) * static_cast<A>(plan.channels);
        sums.of_set[group] = rstd * (d.dy / m);
        sums.of_set[plan.groups + group] = rstd * (d.dy_xhat * rstd / m) * rstd;
      });
  NormGradient<A> gradient[N];
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const int c = at.active ? at.channel + j : 0;
    const uint32_t group = group_of(c);
    const A scale = b.rstd[first_set + group] * (b.gamma != nullptr ? b.gamma[c] : A(1));
    gradient[j] = {mean[j], scale, sums.of_set[group], sums.of_set[plan.groups + group]};
  }
  for_each_row(plan, at, [&](int i) {  // 3 write
    const Pack<T, N> x_in = load_pack<N>(x + i), dy_in = load_pack<N>(dy + i);
    A out[N];
#pragma unroll
    for (int j = 0; j < N; ++j)
      out[j] = gradient[j](static_cast<A>(x_in[j]), static_cast<A>(dy_in[j]));
    store_pack(b.dx + at.base + i, round_pack<T, N>(out));
  });
  if (plan.pieces > 1) cluster_wait();
}

// The plan, which does not fit where packs of 16 bytes are not aligned.
template <class T>
GroupNormHeld plan_held(Cuda& cuda, const GroupNormGeometry& g, int tensors,
                        std::initializer_list<const void*> pointers) {
  if (pack_width(sizeof(T), pointers, {g.c}) != kFullPack<T>) return {};
  return plan_group_norm_held(g, kFullPack<T>, sizeof(T), sizeof(acc_t<T>), tensors,
                              cuda.has_hopper_features(), shared_limit(cuda));
}

LaunchShape shape_of(const GroupNormHeld& plan) {
  return {.grid = exact_blocks(plan.blocks(), "group_norm"),
          .threads = kThreads,
          .shared_bytes = static_cast<size_t>(plan.shared_bytes),
          .cluster = plan.pieces,
          .carveout = cudaSharedmemCarveoutMaxShared};
}

}  // namespace

namespace detail {

bool group_norm_held_forward(Cuda& cuda, const GroupNormForward& args, const GroupNormGeometry& g) {
  bool done = false;
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const GroupNormHeld plan = plan_held<T>(cuda, g, 1, {args.x.data, args.y.data});
    if (!plan.fits) return;
    launch_overlapping(cuda, shape_of(plan), group_norm_forward_held<T, kFullPack<T>>,
                       slab_forward<T>(args), plan);
    done = true;
  });
  return done;
}

bool group_norm_held_backward(Cuda& cuda, const GroupNormBackward& args,
                              const GroupNormGeometry& g) {
  bool done = false;
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using A = acc_t<T>;
    const GroupNormHeld plan = plan_held<T>(cuda, g, 2, {args.x.data, args.dy.data, args.dx.data});
    if (!plan.fits) return;
    const BackwardWorkspace<A> space(cuda, args, {g.n, g.g, g.channels(), plan.pieces});
    SlabBackward<T> b = slab_backward<T>(args);
    if (args.dgamma || args.dbeta) b.parts = space.parts;
    launch_overlapping(cuda, shape_of(plan), group_norm_backward_held<T, kFullPack<T>>, b, plan);
    sum_samples(cuda, args, g.c, true, space);
    done = true;
  });
  return done;
}

}  // namespace detail
}  // namespace gradus
