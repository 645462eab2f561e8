// Batch normalization of contiguous tensors on CUDA where a cluster of blocks holds a channel in
// registers and shared memory: one launch, and memory is read once.
#pragma once

#include "cuda/batch_norm_finish.cuh"
#include "cuda/batch_norm_plan.h"
#include "cuda/device/cluster_mail.cuh"
#include "cuda/device/norm.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {

// A part as numbers that blocks send each other.
template <class Part, class A>
using PartMail = ClusterMail<A, static_cast<int>(sizeof(Part) / sizeof(A))>;

// The parts of all blocks of the cluster merged, for the first lane of each; all threads call it.
// Mail, not a barrier of the cluster: that would wait for the memory first, and again before a
// block may end.
template <int kThreads, class Part, class A, int kNumbers>
__device__ __forceinline__ Part merge_held(const Part& of_thread, ClusterMail<A, kNumbers>& mail,
                                           int cluster) {
  __shared__ detail::SharedSlots<Part> of_warp;
  constexpr int kWarps = kThreads / kWarp;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  Part part = merge_warp(of_thread);
  if (lane == 0) of_warp.get()[warp] = part;
  __syncthreads();
  if (warp != 0) return part;
  part = merge_warp<kWarps>(of_warp.get()[lane % kWarps]);
  if (cluster == 1) return part;
  A numbers[kNumbers];
  memcpy(numbers, &part, sizeof part);
  mail.send(0, numbers, cluster);
  mail.wait(0, 0);
#pragma unroll
  for (int i = 0; i < kNumbers; ++i) numbers[i] = lane < cluster ? mail.of[0][i][lane] : A(0);
  memcpy(&part, numbers, sizeof part);
  return merge_warp<kMaxCluster>(part);
}

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
__global__ void __launch_bounds__(kThreads, kKept > 0 ? 1 : 3)
    batch_norm_held(const Of of, typename Of::Element* __restrict__ to, const BatchNormHeld plan,
                    const Finish f, int64_t* batches) {
  using Item = typename Of::template Item<N>;
  using Terms = typename Finish::Terms;
  constexpr int U = batch_norm_unroll(N) / Of::kInputs;
  static_assert(kKept % U == 0);
  __shared__ Terms shared;
  __shared__ PartMail<typename Of::Part, typename Of::A> mail;
  const auto cluster = static_cast<unsigned>(plan.cluster);
  const unsigned c = blockIdx.x / cluster, rank = blockIdx.x % cluster;
  const int thread = static_cast<int>(threadIdx.x), in_shared = plan.in_shared;
  const int begin = static_cast<int>(rank) * plan.piece;
  const int count = max(0, min(plan.piece, plan.packs - begin));
  const BatchNormHeldWalk first(plan, c, static_cast<uint32_t>(begin + thread), N);
  // The cluster meets while memory is read.
  if (plan.cluster > 1) {
    mail.prepare();
    cluster_meet_first();
  }
  wait_for_previous_kernel();
  start_next_kernel();
  auto* held = reinterpret_cast<Raw<typename Of::Element, N>*>(dynamic_shared());
  BatchNormHeldWalk at = first;
  Item kept[kKept > 0 ? kKept : 1];
#pragma unroll
  for (int k = 0; k < kKept; ++k, at.step(plan)) {
    if (thread + k * kThreads < count) kept[k] = of.template load<N>(at.at);
  }
  constexpr int kFirst = kKept * kThreads, kGroup = U * kThreads;
  // Sums of what has come are taken while the rest is under way. More stages are more code, which
  // must be fetched as well; in the long kernel that keeps packs they are a loop.
  constexpr int kStages = kKept > 0 ? 4 : Of::kInputs == 1 ? 2 : 1;
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
  typename Finish::Channel of_c{};
  if (thread < kWarp) of_c = f.channel(c, writes);
  if (plan.cluster > 1) cluster_meet_second();
  if constexpr (kKept > 0) take_kept<U, kThreads>(row, kept, count);
  i = thread;
#pragma unroll kStagesInCode
  for (int s = 0; s < kStages; ++s) {
    wait_copies_but(kStages - 1 - s);
    take_held<Of, U, kThreads>(row, held, in_shared, i, end_of(s));
  }
  take_held<Of, 1, kThreads>(row, held, in_shared, i, count - kFirst);
  const auto part = merge_held<kThreads>(row.part, mail, plan.cluster);
  if (thread < kWarp) {
    const Terms t = f.finish(c, of_c, part, writes);
    if (thread == 0) shared = t;
    if (writes && batches != nullptr && c == 0) ++*batches;
  }
  __syncthreads();
  const Terms t = shared;
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
