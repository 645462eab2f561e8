// Group normalization of channels-last tensors whose samples, all channels or a tile of them, a
// block or a cluster holds in shared memory.
#include "cuda/group_norm_held.cuh"
#include "cuda/group_norm_launch.h"
#include "cuda/group_norm_samples.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/with_eviction.cuh"

namespace gradus {
namespace {

constexpr int kThreads = GroupNormHeld::kThreads;
// Channels of a thread, where T has packs of as many.
template <class T>
constexpr int kHeldChannels = std::min(GroupNormHeld::kChannels, kFullPack<T>);

// Moments of N channels over a thread's rows, by sums about its first one: the square of what that
// is off by is at most the sum of the rows' squares about their mean, so that of n rows the
// difference below is no worse than 1 + n times rounded; n is some tens.
template <class T, int N>
struct HeldMoments {
  using A = acc_t<T>;
  A first[N], sum[N] = {}, square[N] = {};  // in the end sum is the mean, square about it
  A count;

  __device__ __forceinline__ HeldMoments(const GroupNormHeld& plan, const HeldThread& at,
                                         const T* x)
      : count(static_cast<A>((at.rows - at.row + at.step - 1) / at.step)) {
    Pack<T, N> in{};
    if (at.row < at.rows) in = load_pack<N>(x + at.row * plan.c + at.channel);
#pragma unroll
    for (int j = 0; j < N; ++j) first[j] = static_cast<A>(in[j]);
  }
  __device__ __forceinline__ void take(const Pack<T, N>& in) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const A d = static_cast<A>(in[j]) - first[j];
      sum[j] += d;
      square[j] += d * d;
    }
  }
  // With the lanes that have the same channels; what the lowest one gets counts.
  __device__ __forceinline__ void finish(int columns) {
    const A share = count > A(0) ? A(1) / count : A(0);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const A shift = sum[j] * share;
      // Squares that overflow leave an infinite m2; an infinite element makes it NaN.
      const bool overflows = square[j] - square[j] != A(0) && sum[j] - sum[j] == A(0);
      const A m2 = overflows ? square[j] : square[j] - sum[j] * shift;
      sum[j] = first[j] + shift;
      square[j] = m2 < A(0) ? A(0) : m2;
    }
    for (int mask = columns; mask < kWarp; mask *= 2) merge(mask);
  }

 private:
  __device__ __forceinline__ void merge(int mask) {
    const A other = __shfl_xor_sync(kAllLanes, count, mask), total = count + other;
    const A share = total > A(0) ? other / total : A(0), weight = count * share;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const A delta = __shfl_xor_sync(kAllLanes, sum[j], mask) - sum[j];
      sum[j] += delta * share;
      square[j] += __shfl_xor_sync(kAllLanes, square[j], mask) + delta * (delta * weight);
    }
    count = total;
  }
};

// math    y = (x - mean)·rstd·gamma + beta; core/ops/group_norm.h
// grid    one block per piece of a tile of a sample, the pieces of a tile one cluster
// passes  1 load and moments, merged, 2 write
// bytes   fewest 2Eb = actual
// smem    the rows of the piece, and sums and terms per column and group
// needs   packs of 16 bytes aligned in x and y
// order   rows of a thread, lanes, slots, channels, blocks: fixed by the shape
template <class T, int N, Evict kEvict>
__global__ void __launch_bounds__(kThreads, 4)
    group_norm_forward_held(const __grid_constant__ SlabForward<T> f,
                            const __grid_constant__ GroupNormHeld plan) {
  using A = acc_t<T>;
  __shared__ A of_rows[kThreads / kWarp];  // the rows of each slot
  const HeldThread at = held_thread<N>(plan);
  const HeldSums<A> sums = held_sums<A>(plan, 1);
  T* held = reinterpret_cast<T*>(dynamic_shared());
  HeldMail<A> mail(plan, sums);
  wait_for_previous_kernel();
  start_next_kernel();
  HeldMoments<T, N> own(plan, at, f.x + at.base);
  copy_rows<T, 1>(plan, at, {held}, {f.x}, L2Policy<kEvict>());
  finish_copies();
  for_each_row(plan, at, [&](int i) { own.take(load_pack<N>(held + i)); });
  own.finish(plan.columns);
  const HeldSlot slot(plan, at);
  A *means = sums.of_slot, *squares = sums.of_slot + plan.slots * plan.tile;
  if (slot.writes) {
    const int to = slot.slot * plan.tile + at.channel;
#pragma unroll
    for (int j = 0; j < N; ++j) means[to + j] = own.sum[j], squares[to + j] = own.square[j];
    if (at.channel == 0) of_rows[slot.slot] = own.count;
  }
  __syncthreads();
  const auto count_of = [&](int rank) { return A(plan.channels) * A(plan.rows_of(rank)); };
  const A count = count_of(at.piece), share = count > A(0) ? A(1) / count : A(0);
  for_each_group(plan, [&](int group, int k, int lanes) {
    // From one of the means, so that of equal ones it is the mean.
    const A pivot = group < plan.groups ? means[group * plan.channels] : A(0);
    A centre = A(0), residual = A(0), m2 = A(0);
    for_each_channel(plan, group, k, lanes, [&](int c) {
      for_each_slot(plan, c,
                    [&](int i, int slot) { centre += of_rows[slot] * share * (means[i] - pivot); });
    });
    centre = pivot + lanes_sum(centre, lanes);
    for_each_channel(plan, group, k, lanes, [&](int c) {
      for_each_slot(plan, c, [&](int i, int slot) {
        const A d = means[i] - centre, part = of_rows[slot] * d;
        residual += part;
        m2 += squares[i] + part * d;
      });
    });
    residual = lanes_sum(residual, lanes);
    m2 = lanes_sum(m2, lanes);
    if (k != 0 || group >= plan.groups) return;
    const Moments<A> moments = correct_moments(count, share, centre, m2, residual);
    sums.of_group[group] = moments.mean;
    sums.of_group[plan.groups + group] = moments.m2;
  });
  __syncthreads();
  merge_cluster<FoldMoments>(
      plan, mail,
      [&](const A* of, int rank, int group) {
        return Moments<A>{count_of(rank), of[group], of[plan.groups + group]};
      },
      [&](int group, int k, int lanes, const Moments<A>& moments) {
        const A var = moments.m2 / moments.count, rstd = A(1) / sqrt(var + f.eps);
        for_each_channel(plan, group, k, lanes, [&](int c) {
          const int of_all = at.first_channel + c;
          sums.terms[c] = moments.mean;
          sums.terms[plan.tile + c] = rstd * (f.gamma != nullptr ? f.gamma[of_all] : A(1));
          sums.terms[2 * plan.tile + c] = f.beta != nullptr ? f.beta[of_all] : A(0);
        });
        if (k != 0 || at.piece != 0) return;
        f.mean[at.first_set + group] = norm_saved_mean(moments.mean, var);
        f.rstd[at.first_set + group] = rstd;
        if (f.var != nullptr) f.var[at.first_set + group] = var;
      });
  A mean[N], scale[N], beta[N];
  load_terms(plan, at, sums, 0, mean);
  load_terms(plan, at, sums, 1, scale);
  load_terms(plan, at, sums, 2, beta);
  write_rows(plan, at, f.y, [&](int i) {
    const Pack<T, N> in = load_pack<N>(held + i);
    A out[N];
#pragma unroll
    for (int j = 0; j < N; ++j)
      out[j] = norm_scaled(static_cast<A>(in[j]), mean[j], scale[j], beta[j]);
    return round_pack<T, N>(out);
  });
}

// math    dx = rstd·(d - m1 - xhat·m2), d = gamma·dy; core/ops/group_norm.h
// grid    as the forward kernel
// passes  1 load and sums, merged, 2 write
// bytes   fewest 3Eb = actual (parts: 2 numbers per piece and channel)
// smem    the rows of the piece in x and dy, and sums and terms per column and group
// needs   packs of 16 bytes aligned in x, dy and dx
// order   rows of a thread, lanes, slots, channels, blocks: fixed by the shape
template <class T, int N>
__global__ void __launch_bounds__(kThreads, 4)
    group_norm_backward_held(const __grid_constant__ SlabBackward<T> b,
                             const __grid_constant__ GroupNormHeld plan) {
  using A = acc_t<T>;
  const HeldThread at = held_thread<N>(plan);
  const HeldSums<A> sums = held_sums<A>(plan, 2);
  T* x = reinterpret_cast<T*>(dynamic_shared());
  T* dy = x + plan.tensor_bytes / static_cast<int>(sizeof(T));
  HeldMail<A> mail(plan, sums);
  wait_for_previous_kernel();
  start_next_kernel();
  A mean[N], of_dy[N] = {}, of_dy_x[N] = {};
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const auto c = static_cast<uint32_t>(at.row < at.rows ? at.channel + j : 0);
    mean[j] = b.mean[at.first_set + plan.by_channels.quotient(c)];
  }
  copy_rows<T, 2>(plan, at, {x, dy}, {b.x, b.dy}, L2Policy<Evict::normal>());
  finish_copies();
  for_each_row(plan, at, [&](int i) {
    const Pack<T, N> x_in = load_pack<N>(x + i), dy_in = load_pack<N>(dy + i);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const A d = static_cast<A>(dy_in[j]);
      of_dy[j] += d;
      of_dy_x[j] += d * (static_cast<A>(x_in[j]) - mean[j]);
    }
  });
  for (int mask = plan.columns; mask < kWarp; mask *= 2) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      of_dy[j] += __shfl_xor_sync(kAllLanes, of_dy[j], mask);
      of_dy_x[j] += __shfl_xor_sync(kAllLanes, of_dy_x[j], mask);
    }
  }
  const HeldSlot slot(plan, at);
  A *dy_sums = sums.of_slot, *dy_x_sums = sums.of_slot + plan.slots * plan.tile;
  if (slot.writes) {
    const int to = slot.slot * plan.tile + at.channel;
#pragma unroll
    for (int j = 0; j < N; ++j) dy_sums[to + j] = of_dy[j], dy_x_sums[to + j] = of_dy_x[j];
  }
  __syncthreads();
  for_each_group(plan, [&](int group, int k, int lanes) {
    A d = A(0), d_x = A(0);
    for_each_channel(plan, group, k, lanes, [&](int c) {
      A of_c = A(0), of_c_x = A(0);
      for_each_slot(plan, c, [&](int i, int) { of_c += dy_sums[i], of_c_x += dy_x_sums[i]; });
      const int of_all = at.first_channel + c;
      if (b.parts != nullptr)
        b.parts[at.part * plan.c + of_all] = {of_c, of_c_x * b.rstd[at.first_set + group]};
      const A gamma = b.gamma != nullptr ? b.gamma[of_all] : A(1);
      d += gamma * of_c, d_x += gamma * of_c_x;
    });
    d = lanes_sum(d, lanes);
    d_x = lanes_sum(d_x, lanes);
    if (k == 0 && group < plan.groups)
      sums.of_group[group] = d, sums.of_group[plan.groups + group] = d_x;
  });
  if (b.dx == nullptr) {
    if (plan.pieces > 1) cluster_meet_second();
    return;
  }
  __syncthreads();
  merge_cluster<FoldSums>(
      plan, mail,
      [&](const A* of, int, int group) {
        return ChannelSums<A>{of[group], of[plan.groups + group]};
      },
      [&](int group, int k, int lanes, const ChannelSums<A>& d) {
        const A rstd = b.rstd[at.first_set + group];
        const A m = static_cast<A>(plan.s) * static_cast<A>(plan.channels);
        const A shift = rstd * (d.dy / m), stretch = rstd * (d.dy_xhat * rstd / m) * rstd;
        for_each_channel(plan, group, k, lanes, [&](int c) {
          const A gamma = b.gamma != nullptr ? b.gamma[at.first_channel + c] : A(1);
          sums.terms[c] = rstd * gamma;
          sums.terms[plan.tile + c] = shift;
          sums.terms[2 * plan.tile + c] = stretch;
        });
      });
  A scale[N], shift[N], stretch[N];
  load_terms(plan, at, sums, 0, scale);
  load_terms(plan, at, sums, 1, shift);
  load_terms(plan, at, sums, 2, stretch);
  write_rows(plan, at, b.dx, [&](int i) {
    const Pack<T, N> x_in = load_pack<N>(x + i), dy_in = load_pack<N>(dy + i);
    A out[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const NormGradient<A> gradient{mean[j], scale[j], shift[j], stretch[j]};
      out[j] = gradient(static_cast<A>(x_in[j]), static_cast<A>(dy_in[j]));
    }
    return round_pack<T, N>(out);
  });
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
    with_eviction<16>(cuda, args.x.nbytes(), [&](auto evict) {
      launch_overlapping(cuda, shape_of(plan),
                         group_norm_forward_held<T, kHeldChannels<T>, evict()>,
                         slab_forward<T>(args), plan);
    });
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
    launch_overlapping(cuda, shape_of(plan), group_norm_backward_held<T, kHeldChannels<T>>, b,
                       plan);
    sum_samples(cuda, args, g.c, true, space);
    done = true;
  });
  return done;
}

}  // namespace detail
}  // namespace gradus
