// Batch normalization in training of contiguous tensors whose planes do not divide into packs, on
// CUDA: a cluster of blocks holds a band of channels, which come and go together, in shared memory.
#pragma once

#include "cuda/batch_norm_held.cuh"

namespace gradus {

// math    as batch_norm_write_rows
// grid    one cluster per band of channels, a block of it for some of the samples
// passes  1: into shared memory, moments or sums, y or dx in the place of x, written
// bytes   fewest 2Eb and 3Eb = actual
// smem    the band's part of the block's samples
// needs   runs of packs of 16 bytes
// order   a thread's elements in groups, lanes, warps, blocks of the cluster: fixed by the plan
template <class Of, class Finish, int N>
__global__ void __launch_bounds__(kBatchNormThreads, batch_norm_held_blocks(0, 0, Of::kInputs))
    batch_norm_bands(const Of of, typename Of::Element* __restrict__ to, const BatchNormBands bands,
                     const Finish f, int64_t* batches) {
  using T = typename Of::Element;
  using Terms = typename Finish::Terms;
  constexpr int kWarps = kBatchNormThreads / kWarp, U = batch_norm_unroll(1) / Of::kInputs;
  __shared__ WarpParts<typename Of::Part, kWarps> parts;
  const BatchNormHeld& plan = bands.held;
  const auto cluster = static_cast<unsigned>(plan.cluster);
  const unsigned band = blockIdx.x / cluster, rank = blockIdx.x % cluster;
  const int thread = static_cast<int>(threadIdx.x), warps = kWarps / bands.channels;
  const int channel = thread / kWarp / warps, of_channel = thread - channel * warps * kWarp;
  const int begin = static_cast<int>(rank) * plan.piece;
  const int count = max(0, min(plan.piece, plan.packs - begin));
  const BatchNormHeldWalk first(plan, band, static_cast<uint32_t>(begin + thread), N);
  if (plan.cluster > 1) {
    parts.prepare();
    cluster_meet_first();
  }
  wait_for_previous_kernel();
  auto* const packs = reinterpret_cast<Raw<T, N>*>(dynamic_shared());
  auto* const held = reinterpret_cast<Raw<T, 1>*>(packs);
  BatchNormHeldWalk at = first;
  for (int i = thread; i < count; i += kBatchNormThreads, at.step(plan))
    of.template hold<N>(packs, i, plan.in_shared, at.at);
  commit_copies();
  const int64_t c = int64_t{band} * bands.channels + channel;
  const bool writes = rank == 0 && of_channel == 0;
  typename Of::Row row(of, c);
  const typename Finish::Channel of_c = f.channel(c, writes);
  if (plan.cluster > 1) cluster_meet_second();
  wait_copies<0>();
  __syncthreads();
  const int samples = count / static_cast<int>(plan.row_packs), size = plan.in_shared * N;
  const BatchNormBandWalk own(bands, channel, of_channel, samples);
  BatchNormBandWalk walk = own;
  while (walk.left >= U) {
    typename Of::template Item<1> items[U];
#pragma unroll
    for (int u = 0; u < U; ++u, walk.step()) items[u] = Of::template held<1>(held, walk.at, size);
    row.take(items);
    row.settle();
  }
  for (; walk.left > 0; walk.step()) {
    typename Of::template Item<1> items[1] = {Of::template held<1>(held, walk.at, size)};
    row.take(items);
  }
  const auto all =
      parts.exchange(merge_warp(row.part()), plan.cluster, thread / kWarp / warps * warps, warps);
  const Terms t = f.finish(c, of_c, all, writes);
  if (writes && batches != nullptr && c == 0) ++*batches;
  start_next_kernel();
  if (to == nullptr) return;  // the parameters' gradients alone are wanted
#pragma unroll 4
  for (walk = own; walk.left > 0; walk.step())
    held[walk.at] = t(Of::template held<1>(held, walk.at, size));
  __syncthreads();
  at = first;
#pragma unroll 2
  for (int i = thread; i < count; i += kBatchNormThreads, at.step(plan)) packs[i].store(to + at.at);
}

}  // namespace gradus
