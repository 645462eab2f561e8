// Batch normalization of contiguous tensors on CUDA where a cluster of blocks holds a channel in
// registers and shared memory: one launch, and memory is read once.
#pragma once

#include "cuda/batch_norm_finish.cuh"
#include "cuda/batch_norm_plan.h"
#include "cuda/device/cluster_mail.cuh"
#include "cuda/device/norm.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {

// What the warps of a cluster send each other: by mail, not by way of the first warp of each block
// and two barriers, since the way from the last byte read to the first one written is what small
// tensors wait for.
template <class Part, int kWarps>
struct WarpParts {
  static constexpr int kMost = kWarps * kMaxCluster;
  struct alignas(16) Slot {
    unsigned char bytes[(sizeof(Part) + 15) / 16 * 16];
  };
  Slot of[kMost];                         // warps of block 0, of block 1, ...
  alignas(8) unsigned long long arrived;  // bytes still under way

  // cluster_meet() must follow before exchange() where the cluster has several blocks.
  __device__ __forceinline__ void prepare() {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      barrier().open(1);
      publish_barriers();
    }
#endif
  }

  // All parts of the cluster merged, in the same order for everyone; all threads call it. Of those
  // of `warps` warps of each block from `first_warp` on.
  __device__ __forceinline__ Part exchange(const Part& of_warp, int cluster, int first_warp = 0,
                                           int warps = kWarps) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, count = cluster * warps;
    Slot slot;
    memcpy(&slot, &of_warp, sizeof of_warp);
    if (cluster == 1) {
      if (lane == 0) of[warp] = slot;
      __syncthreads();
    } else {
      send(slot, static_cast<int>(cluster_rank()) * kWarps + warp, cluster);
    }
    Part part{};
#pragma unroll
    for (int first = 0; first < kMost; first += kWarp) {
      if (first + lane >= count) continue;
      const int i = first + lane;
      slot = of[warps == kWarps ? i : i / warps * kWarps + first_warp + i % warps];
      Part theirs;
      memcpy(&theirs, &slot, sizeof theirs);
      part = merge(part, theirs);
    }
    return merge_warp(part);
  }

 private:
  __device__ __forceinline__ void send(const Slot& slot, int place, int cluster) {
#if __CUDA_ARCH__ >= 900
    constexpr int kWords = sizeof(Slot) / 16;
    const int lane = threadIdx.x % kWarp;
    if (threadIdx.x == 0)
      barrier().arrive_expecting(cluster * kWarps * static_cast<int>(sizeof(Slot)));
    if (lane < cluster) {
      const auto rank = static_cast<unsigned>(lane);
      const uint32_t to = in_cluster(shared_address(&of[place]), rank);
      const uint32_t theirs = in_cluster(barrier().address, rank);
      uint4 words[kWords];
      memcpy(words, &slot, sizeof slot);
#pragma unroll
      for (int i = 0; i < kWords; ++i) send_words(to + 16 * i, words[i], theirs);
    }
    barrier().wait(0);
#endif
  }
  __device__ __forceinline__ SharedBarrier barrier() { return {shared_address(&arrived)}; }
};

// Adds up what a thread has in registers: of its packs those below `count`.
template <int U, int kThreads, class Row, class Item, int K>
__device__ __forceinline__ void take_kept(Row& row, const Item (&kept)[K], int count) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int k = 0; k < K; k += U) {
    if (thread + (k + U - 1) * kThreads < count) {
      Item items[U];
#pragma unroll
      for (int u = 0; u < U; ++u) items[u] = kept[k + u];
      row.take(items);
    } else {
#pragma unroll
      for (int u = 0; u + 1 < U; ++u) {
        Item item[1] = {kept[k + u]};
        if (thread + (k + u) * kThreads < count) row.take(item);
      }
    }
  }
}

// The same for shared memory: groups of U packs from pack i on, those that end before `end`.
template <class Of, int U, int kThreads, class Row, class T, int N>
__device__ __forceinline__ void take_held(Row& row, const Raw<T, N>* held, int in_shared, int& i,
                                          int end) {
  using Item = typename Of::template Item<N>;
  for (; i + (U - 1) * kThreads < end; i += U * kThreads) {
    Item items[U];
#pragma unroll
    for (int u = 0; u < U; ++u) items[u] = Of::template held<N>(held, i + u * kThreads, in_shared);
    row.take(items);
  }
}

// math    as batch_norm_write_rows
// grid    one cluster per channel, block r of which has packs r·piece, ...; a thread has packs
//         thread, thread + kThreads, ... of them
// passes  1: into registers and shared memory, moments or sums, y or dx written
// bytes   fewest 2Eb and 3Eb = actual
// smem    what is beyond the first kKept packs of each thread
// needs   packs of 16 bytes
// order   a thread's groups of packs, lanes, warps, blocks of the cluster: fixed by the plan
template <class Of, class Finish, int N, int kThreads, int kKept>
__global__ void __launch_bounds__(kThreads, batch_norm_held_blocks(kThreads, kKept, Of::kInputs))
    batch_norm_held(const Of of, typename Of::Element* __restrict__ to, const BatchNormHeld plan,
                    const Finish f, int64_t* batches) {
  using Item = typename Of::template Item<N>;
  using Terms = typename Finish::Terms;
  constexpr int U = batch_norm_unroll(N) / Of::kInputs;
  static_assert(kKept % U == 0);
  __shared__ WarpParts<typename Of::Part, kThreads / kWarp> parts;
  const auto cluster = static_cast<unsigned>(plan.cluster);
  const unsigned c = blockIdx.x / cluster, rank = blockIdx.x % cluster;
  const int thread = static_cast<int>(threadIdx.x), in_shared = plan.in_shared;
  const int begin = static_cast<int>(rank) * plan.piece;
  const int count = max(0, min(plan.piece, plan.packs - begin));
  const BatchNormHeldWalk first(plan, c, static_cast<uint32_t>(begin + thread), N);
  // The cluster meets while memory is read.
  if (plan.cluster > 1) {
    parts.prepare();
    cluster_meet_first();
  }
  wait_for_previous_kernel();
  auto* held = reinterpret_cast<Raw<typename Of::Element, N>*>(dynamic_shared());
  BatchNormHeldWalk at = first;
  Item kept[kKept > 0 ? kKept : 1];
#pragma unroll
  for (int k = 0; k < kKept; ++k, at.step(plan)) {
    if (thread + k * kThreads < count) kept[k] = of.template load<N>(at.at);
  }
  constexpr int kFirst = kKept * kThreads, kGroup = U * kThreads;
  // Sums of what has come are taken while the rest is under way. More stages are more code, which
  // must be fetched as well; in the long kernels that keep packs they are a loop.
  constexpr bool kWide = kThreads == BatchNormHeld::kWideThreads;
  constexpr int kStages = kWide ? 4 : kKept > 0 || Of::kInputs == 1 ? 2 : 1;
  constexpr int kStagesInCode = kKept > 0 ? 1 : kStages;
  const int stage = (in_shared / kStages + kGroup - 1) / kGroup * kGroup;
  const auto end_of = [&](int s) {
    return s + 1 == kStages ? count - kFirst : min(count - kFirst, (s + 1) * stage);
  };
  int i = thread;
#pragma unroll kStagesInCode
  for (int s = 0; s < kStages; ++s) {
    for (; i < end_of(s); i += kThreads, at.step(plan))
      of.template hold<N>(held, i, in_shared, at.at);
    commit_copies();
  }
  typename Of::Row row(of, c);
  const bool writes = rank == 0 && thread == 0;
  const typename Finish::Channel of_c = f.channel(c, writes);
  if (plan.cluster > 1) cluster_meet_second();
  if constexpr (kKept > 0) take_kept<U, kThreads>(row, kept, count);
  i = thread;
#pragma unroll kStagesInCode
  for (int s = 0; s < kStages; ++s) {
    wait_copies_but(kStages - 1 - s);
    take_held<Of, U, kThreads>(row, held, in_shared, i, end_of(s));
  }
  take_held<Of, 1, kThreads>(row, held, in_shared, i, count - kFirst);
  const Terms t = f.finish(c, of_c, parts.exchange(merge_warp(row.part()), plan.cluster), writes);
  if (writes && batches != nullptr && c == 0) ++*batches;
  // Earlier, blocks of the next kernel would take room on some multiprocessors more than on others.
  start_next_kernel();
  at = first;
#pragma unroll
  for (int k = 0; k < kKept; ++k, at.step(plan)) {
    if (thread + k * kThreads < count) t(kept[k]).store(to + at.at);
  }
#pragma unroll 2
  for (i = thread; i < count - kFirst; i += kThreads, at.step(plan))
    t(Of::template held<N>(held, i, in_shared)).store(to + at.at);
}

}  // namespace gradus
