// Group normalization through memory: from the parts of sets and channels to statistics and
// gradients, and the passes that write contiguous tensors which no cluster holds.
#pragma once

#include "cuda/device/norm.cuh"
#include "cuda/device/quotient.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/round.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/group_norm_slab_backward.cuh"

namespace gradus {

// Where the parts of set (sample, group) lie in [n, parts, groups·channels].
struct PartsOfSets {
  int64_t sets = 0, groups = 1, channels = 1, parts = 1;
  FastDivisor by_groups, by_channels;

  PartsOfSets() = default;
  PartsOfSets(int64_t n, int64_t groups, int64_t channels, int64_t parts)
      : sets(n * groups),
        groups(groups),
        channels(channels),
        parts(parts),
        by_groups(static_cast<uint32_t>(groups)),
        by_channels(static_cast<uint32_t>(channels)) {}

  int64_t numel() const { return sets * channels * parts; }
#ifdef __CUDACC__
  // Calls f(index of the part, channel) for each part of a set that this one of its kThreads takes.
  template <int kThreads, class F>
  __device__ __forceinline__ void for_each(int64_t set, int thread, F&& f) const {
    const int64_t sample = quotient(by_groups, set), group = set - sample * groups;
    for (int64_t i = thread; i < parts * channels; i += kThreads) {
      const int64_t part = quotient(by_channels, i);
      const int64_t channel = group * channels + i - part * channels;
      f((sample * parts + part) * groups * channels + channel, channel);
    }
  }
#endif
};

// The threads that finish a set of many parts, a block; of few parts a warp does, eight in a block.
inline constexpr int kGroupNormSetThreads = 1024;
constexpr int group_norm_finish_threads(int of_set) { return of_set > kWarp ? of_set : 8 * kWarp; }

// Over the kThreads of a set.
template <int kThreads, class T, class Op>
__device__ __forceinline__ T reduce_set_parts(T value, Op op) {
  if constexpr (kThreads == kWarp) {
    return warp_reduce(value, op);
  } else {
    return block_reduce(value, op, T{});
  }
}

// math    mean, rstd, var of each set from the moments of its parts
// grid    kThreads per set: a block, or a warp of a block of eight
// order   parts of a thread, then threads: fixed by the shape
template <int kThreads, class A>
__global__ void __launch_bounds__(group_norm_finish_threads(kThreads))
    group_norm_finish_moments(const Moments<A>* parts, const PartsOfSets of, A* mean, A* rstd,
                              A* var, A eps) {
  constexpr int kSets = group_norm_finish_threads(kThreads) / kThreads;
  const int64_t set = int64_t{blockIdx.x} * kSets + threadIdx.x / kThreads;
  const int thread = threadIdx.x % kThreads;
  wait_for_previous_kernel();
  start_next_kernel();
  if (set >= of.sets) return;
  Moments<A> moments{};
  of.template for_each<kThreads>(
      set, thread, [&](int64_t part, int64_t) { moments = MergeMoments{}(moments, parts[part]); });
  moments = reduce_set_parts<kThreads>(moments, MergeMoments{});
  if (thread != 0) return;
  const A variance = moments.m2 / moments.count;
  mean[set] = norm_saved_mean(moments.mean, variance);
  rstd[set] = A(1) / sqrt(variance + eps);
  if (var != nullptr) var[set] = variance;
}

// math    m1 and m2 of each set from its channels' sums
// grid    kThreads per set: a block, or a warp of a block of eight
// order   parts of a thread, then threads: fixed by the shape
template <int kThreads, class A>
__global__ void __launch_bounds__(group_norm_finish_threads(kThreads))
    group_norm_finish_sums(const ChannelSums<A>* parts, const PartsOfSets of, const A* gamma, A m,
                           ChannelSums<A>* terms) {
  constexpr int kSets = group_norm_finish_threads(kThreads) / kThreads;
  const int64_t set = int64_t{blockIdx.x} * kSets + threadIdx.x / kThreads;
  const int thread = threadIdx.x % kThreads;
  wait_for_previous_kernel();
  start_next_kernel();
  if (set >= of.sets) return;
  ChannelSums<A> d{};
  of.template for_each<kThreads>(set, thread, [&](int64_t part, int64_t channel) {
    const A weight = gamma != nullptr ? gamma[channel] : A(1);
    d = {d.dy + weight * parts[part].dy, d.dy_xhat + weight * parts[part].dy_xhat};
  });
  d = {reduce_set_parts<kThreads>(d.dy, SumOp{}), reduce_set_parts<kThreads>(d.dy_xhat, SumOp{})};
  if (thread == 0) terms[set] = {d.dy / m, d.dy_xhat / m};
}

// math    dgamma[c] = Σ dy·xhat, dbeta[c] = Σ dy over the rows of parts [rows, c]
// grid    (8 channels, a chunk of rows) per block of 8 times 32 threads
// passes  1; where there are several chunks they become the rows of a second launch
// order   rows of a thread, then threads pairwise: fixed by the shape
template <class A>
__global__ void __launch_bounds__(kGroupNormSampleChannels* kWarp)
    group_norm_sum_samples(const ChannelSums<A>* parts, int64_t rows, int64_t c, int64_t per_chunk,
                           ChannelSums<A>* next, A* dgamma, A* dbeta) {
  constexpr int kChannels = kGroupNormSampleChannels;
  __shared__ ChannelSums<A> of_row[kWarp][kChannels + 1];
  const int column = threadIdx.x % kChannels, row = threadIdx.x / kChannels;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t first = int64_t{blockIdx.x} * kChannels;
  const int64_t end = min(rows, (blockIdx.y + 1) * per_chunk);
  wait_for_previous_kernel();
  start_next_kernel();
  ChannelSums<A> sums =
      reduce_strided(parts + first + column, blockIdx.y * per_chunk + row,
                     first + column < c ? end : 0, kWarp, c, AddChannelSums{}, ChannelSums<A>{});
  of_row[row][column] = sums;
  __syncthreads();
  sums = of_row[lane][warp];  // a warp adds up a channel: its lanes are the rows now
  sums = {warp_sum(sums.dy), warp_sum(sums.dy_xhat)};
  const int64_t channel = first + warp;
  if (lane != 0 || channel >= c) return;
  if (next != nullptr) {
    next[blockIdx.y * c + channel] = sums;
  } else {
    if (dgamma != nullptr) dgamma[channel] = sums.dy_xhat;
    if (dbeta != nullptr) dbeta[channel] = sums.dy;
  }
}

// Channel and set of a pack of a contiguous tensor.
struct PacksOfRows {
  int64_t packs = 0;
  int64_t c = 0;
  FastDivisor by_row, by_c, by_channels;  // packs of a row, channels of a sample and of a set

  PacksOfRows(const GroupNormGeometry& g, int width)
      : packs(g.n * g.c * g.s / width),
        c(g.c),
        by_row(static_cast<uint32_t>(g.s / width)),
        by_c(static_cast<uint32_t>(g.c)),
        by_channels(static_cast<uint32_t>(g.channels())) {}
};

// math    y = (x - mean)·rstd·gamma + beta
// grid    packs of N elements, last pack first: the moments pass has just left them in L2
// bytes   2Eb, after a pass of Eb
// order   element-wise
template <class T, int N>
__global__ void __launch_bounds__(256)
    group_norm_forward_write(const __grid_constant__ SlabForward<T> f, const PacksOfRows of) {
  using A = acc_t<T>;
  wait_for_previous_kernel();
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < of.packs;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t pack = of.packs - 1 - i, row = quotient(of.by_row, pack);
    const int64_t set = quotient(of.by_channels, row), c = row - quotient(of.by_c, row) * of.c;
    const Pack<T, N> in = load_pack<N>(f.x + pack * N);
    const A mean = f.mean[set], scale = f.rstd[set] * (f.gamma != nullptr ? f.gamma[c] : A(1));
    const A beta = f.beta != nullptr ? f.beta[c] : A(0);
    A out[N];
#pragma unroll
    for (int j = 0; j < N; ++j) out[j] = norm_scaled(static_cast<A>(in[j]), mean, scale, beta);
    store_pack(f.y + pack * N, round_pack<T, N>(out));
  }
}

// math    dx = rstd·(d - m1 - xhat·m2), d = gamma·dy
// grid    packs of N elements, last pack first: the sums pass has just left them in L2
// bytes   3Eb, after a pass of 2Eb
// order   element-wise
template <class T, int N>
__global__ void __launch_bounds__(256)
    group_norm_backward_write(const __grid_constant__ SlabBackward<T> b,
                              const ChannelSums<acc_t<T>>* terms, const PacksOfRows of) {
  using A = acc_t<T>;
  wait_for_previous_kernel();
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < of.packs;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t pack = of.packs - 1 - i, row = quotient(of.by_row, pack);
    const int64_t set = quotient(of.by_channels, row), c = row - quotient(of.by_c, row) * of.c;
    const Pack<T, N> x = load_pack<N>(b.x + pack * N), dy = load_pack<N>(b.dy + pack * N);
    const A rstd = b.rstd[set], scale = rstd * (b.gamma != nullptr ? b.gamma[c] : A(1));
    const NormGradient<A> gradient{b.mean[set], scale, rstd * terms[set].dy,
                                   rstd * terms[set].dy_xhat * rstd};
    A out[N];
#pragma unroll
    for (int j = 0; j < N; ++j) out[j] = gradient(static_cast<A>(x[j]), static_cast<A>(dy[j]));
    store_pack(b.dx + pack * N, round_pack<T, N>(out));
  }
}

}  // namespace gradus
