// Launchers that the contiguous and the channels-last kernels of group normalization share.
#pragma once

#include "cuda/context.h"
#include "cuda/group_norm_parts.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {

template <class T>
SlabForward<T> slab_forward(const GroupNormForward& args) {
  using A = acc_t<T>;
  return {.x = args.x.as<T>(),
          .y = args.y.as<T>(),
          .gamma = args.gamma.as<A>(),
          .beta = args.beta.as<A>(),
          .mean = args.mean.as<A>(),
          .rstd = args.rstd.as<A>(),
          .var = args.var.as<A>(),
          .parts = nullptr,
          .eps = static_cast<A>(norm_eps<A>(args.eps)),
          .plan = {}};
}

template <class T>
SlabBackward<T> slab_backward(const GroupNormBackward& args) {
  using A = acc_t<T>;
  return {.x = args.x.as<T>(),
          .dy = args.dy.as<T>(),
          .dx = args.dx.as<T>(),
          .gamma = args.gamma.as<A>(),
          .mean = args.mean.as<A>(),
          .rstd = args.rstd.as<A>(),
          .parts = nullptr,
          .plan = {}};
}

// The backward pass's scratch: sums per channel, m1 and m2 per set, sums over chunks of samples.
template <class A>
struct BackwardWorkspace {
  ChannelSums<A>* parts = nullptr;   // [rows, c]
  ChannelSums<A>* terms = nullptr;   // [n, g]
  ChannelSums<A>* chunks = nullptr;  // [chunks of the rows, c]
  int64_t rows = 0;                  // n · parts per channel

  BackwardWorkspace(Cuda& cuda, const GroupNormBackward& args, const PartsOfSets& of)
      : rows(of.sets / of.groups * of.parts) {
    const int64_t c = of.groups * of.channels;
    const int64_t later = plan_group_norm_samples(rows, c).count * c;
    const int64_t count = of.numel() + of.sets + (args.dgamma || args.dbeta ? later : 0);
    parts = static_cast<ChannelSums<A>*>(
        cuda.workspace(static_cast<size_t>(count) * sizeof(ChannelSums<A>)));
    terms = parts + of.numel();
    chunks = terms + of.sets;
  }
};

// The kernel that finishes sets, with a block for each where few have many parts, else a warp.
template <class... Params, class... Args>
void finish_sets(Cuda& cuda, const PartsOfSets& of, void (*by_block)(Params...),
                 void (*by_warp)(Params...), const Args&... args) {
  const bool blocks = of.parts * of.channels > 8 * kWarp && of.sets <= kTargetBlocks;
  const int of_set = blocks ? kGroupNormSetThreads : kWarp;
  const int threads = group_norm_finish_threads(of_set);
  launch_overlapping(
      cuda,
      {.grid = exact_blocks(ceil_div(of.sets, threads / of_set), "group_norm"), .threads = threads},
      blocks ? by_block : by_warp, args...);
}

template <class A>
void finish_moments(Cuda& cuda, const GroupNormForward& args, const PartsOfSets& of,
                    const Moments<A>* parts) {
  finish_sets(cuda, of, group_norm_finish_moments<kGroupNormSetThreads, A>,
              group_norm_finish_moments<kWarp, A>, parts, of, args.mean.as<A>(), args.rstd.as<A>(),
              args.var.as<A>(), static_cast<A>(norm_eps<A>(args.eps)));
}

template <class A>
void finish_sums(Cuda& cuda, const GroupNormBackward& args, const PartsOfSets& of, int64_t m,
                 const BackwardWorkspace<A>& space) {
  finish_sets(cuda, of, group_norm_finish_sums<kGroupNormSetThreads, A>,
              group_norm_finish_sums<kWarp, A>, space.parts, of, args.gamma.as<A>(),
              static_cast<A>(m), space.terms);
}

// dgamma and dbeta, where wanted; `after_held`: the kernel before holds its sets in shared memory.
template <class A>
void sum_samples(Cuda& cuda, const GroupNormBackward& args, int64_t c, bool after_held,
                 const BackwardWorkspace<A>& space) {
  if (!args.dgamma && !args.dbeta) return;
  const auto kernel = group_norm_sum_samples<A>;
  const Chunks chunks = plan_group_norm_samples(space.rows, c);
  A *dgamma = args.dgamma.as<A>(), *dbeta = args.dbeta.as<A>();
  const unsigned tiles = exact_blocks(ceil_div(c, int64_t{kGroupNormSampleChannels}), "group_norm");
  LaunchShape shape{
      .grid = {tiles, static_cast<unsigned>(chunks.count)},
      .threads = kGroupNormSampleChannels * kWarp,
      .carveout = after_held ? cudaSharedmemCarveoutMaxShared : cudaSharedmemCarveoutDefault};
  ChannelSums<A>* const next = chunks.count > 1 ? space.chunks : nullptr;
  launch_overlapping(cuda, shape, kernel, space.parts, space.rows, c, chunks.size, next, dgamma,
                     dbeta);
  if (next == nullptr) return;
  shape.grid = tiles;
  launch_overlapping(cuda, shape, kernel, next, chunks.count, c, chunks.count, nullptr, dgamma,
                     dbeta);
}

}  // namespace gradus
