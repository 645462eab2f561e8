// What the kernels share that hold samples of channels-last tensors in shared memory for group
// normalization: where threads work, how rows come and go, how sums meet.
#pragma once

#include "cuda/device/cluster_mail.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/shared.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/group_norm_plan.h"
#include "cuda/group_norm_slab.cuh"

namespace gradus {

// What one thread works on: N channels of a tile, every `step`-th row of the block's.
struct HeldThread {
  int64_t base;       // the block's first element
  int64_t first_set;  // of the tile's groups
  int64_t part;       // the block's place in [n, pieces]
  int first_channel;  // of the tile
  int piece, rows;
  int row, step;  // first row
  int channel;    // of the tile
};

template <int N>
__device__ __forceinline__ HeldThread held_thread(const GroupNormHeld& plan) {
  HeldThread at;
  const uint32_t rest = plan.by_pieces.quotient(blockIdx.x), sample = plan.by_tiles.quotient(rest);
  const uint32_t tile = rest - sample * plan.tiles;
  at.piece = static_cast<int>(blockIdx.x - rest * plan.pieces);
  at.part = int64_t{sample} * plan.pieces + at.piece;
  at.first_set = int64_t{sample} * plan.all_groups + tile * plan.groups;
  at.first_channel = static_cast<int>(tile * plan.tile);
  at.rows = plan.rows_of(at.piece);
  at.base = (int64_t{sample} * plan.s + int64_t{at.piece} * plan.rows_per_piece) * plan.c +
            at.first_channel;
  at.channel = static_cast<int>(threadIdx.x) % plan.columns * N;
  at.step = GroupNormHeld::kThreads / plan.columns;
  at.row = at.channel < plan.tile ? static_cast<int>(threadIdx.x) / plan.columns : at.rows;
  return at;
}

// What the block keeps behind the rows that it holds.
template <class A>
struct HeldSums {
  A* of_slot;   // [2, slots, tile]: of the rows that a warp has, or several that share them
  A* terms;     // [3, tile]: what the last pass needs of each channel
  A* of_group;  // [2, groups]
  A* mail;      // [pieces, 2, groups]: of_group of each block of the cluster
};

template <class A>
__device__ __forceinline__ HeldSums<A> held_sums(const GroupNormHeld& plan, int tensors) {
  HeldSums<A> sums;
  sums.of_slot = reinterpret_cast<A*>(dynamic_shared() + tensors * plan.tensor_bytes);
  sums.terms = sums.of_slot + 2 * plan.slots * plan.tile;
  sums.of_group = sums.terms + 3 * plan.tile;
  sums.mail = sums.of_group + 2 * plan.groups;
  return sums;
}

// N values of term i, of the thread's channels.
template <int N, class A>
__device__ __forceinline__ void load_terms(const GroupNormHeld& plan, const HeldThread& at,
                                           const HeldSums<A>& sums, int i, A (&values)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j)
    values[j] = at.row < at.rows ? sums.terms[i * plan.tile + at.channel + j] : A(0);
}

// Starts copying the block's rows of K tensors, 16 bytes a thread.
template <class T, int K, Evict kEvict>
__device__ __forceinline__ void copy_rows(const GroupNormHeld& plan, const HeldThread& at,
                                          T* const (&to)[K], const T* const (&from)[K],
                                          L2Policy<kEvict> policy) {
  constexpr int kPack = kFullPack<T>;
  const int first = static_cast<int>(threadIdx.x) / plan.lanes;
  const int lane = static_cast<int>(threadIdx.x) % plan.lanes * kPack;
  const int step = GroupNormHeld::kThreads / plan.lanes, end = lane < plan.tile ? at.rows : 0;
  int place = first * plan.tile + lane;
  int64_t source = at.base + first * plan.c + lane;
#pragma unroll 4
  for (int row = first; row < end; row += step) {
#pragma unroll
    for (int k = 0; k < K; ++k) hold_pack<kPack>(to[k] + place, from[k] + source, policy);
    place += step * plan.tile, source += step * plan.c;
  }
}

// Calls f(its place in the block's rows) for the first of this thread's N elements in each row.
template <class F>
__device__ __forceinline__ void for_each_row(const GroupNormHeld& plan, const HeldThread& at,
                                             F&& f) {
  int i = at.row * plan.tile + at.channel;
  const int step = at.step * plan.tile;
#pragma unroll 4
  for (int row = at.row; row < at.rows; row += at.step, i += step) f(i);
}

// Writes what f(place) makes of each row.
template <class T, class F>
__device__ __forceinline__ void write_rows(const GroupNormHeld& plan, const HeldThread& at, T* to,
                                           F&& f) {
  const int64_t step = at.step * plan.c;
  to += at.base + at.row * plan.c + at.channel;
  for_each_row(plan, at, [&](int i) {
    store_pack(to, f(i));
    to += step;
  });
}

// The thread's place among the slots; whether it is the one of those that share it which writes.
struct HeldSlot {
  int slot;
  bool writes;
  __device__ __forceinline__ HeldSlot(const GroupNormHeld& plan, const HeldThread& at) {
    const int width = max(plan.columns, kWarp), thread = static_cast<int>(threadIdx.x);
    slot = thread / width;
    writes = thread % width < plan.columns && at.channel < plan.tile;
  }
};

// The blocks of a cluster send each other what they have in of_group (cluster_mail.cuh says why).
template <class A>
class HeldMail {
 public:
  // All threads of all blocks.
  __device__ __forceinline__ HeldMail(const GroupNormHeld& plan, const HeldSums<A>& sums)
      : plan_(plan), sums_(sums) {
#if __CUDA_ARCH__ >= 900
    __shared__ __align__(8) unsigned long long arrived;
    barrier_ = {shared_address(&arrived)};
    if (plan.pieces == 1) return;
    if (threadIdx.x == 0) {
      barrier_.open(1);
      publish_barriers();
    }
    cluster_meet_first();
#endif
  }
  // Once, by all threads, after a barrier.
  __device__ __forceinline__ void exchange() {
#if __CUDA_ARCH__ >= 900
    if (plan_.pieces == 1) return;
    cluster_meet_second();
    const int values = 2 * plan_.groups, rank = static_cast<int>(threadIdx.x) % kMaxCluster;
    if (threadIdx.x == 0)
      barrier_.arrive_expecting(plan_.pieces * values * static_cast<int>(sizeof(A)));
    if (rank < plan_.pieces) {
      const auto to = static_cast<unsigned>(rank);
      const uint32_t theirs = in_cluster(barrier_.address, to);
      const uint32_t box = in_cluster(shared_address(of(static_cast<int>(cluster_rank()))), to);
      for (int i = static_cast<int>(threadIdx.x) / kMaxCluster; i < values;
           i += GroupNormHeld::kThreads / kMaxCluster)
        send_value(box + i * static_cast<uint32_t>(sizeof(A)), sums_.of_group[i], theirs);
    }
    barrier_.wait(0);
#endif
  }
  // [2, groups] of a block.
  __device__ __forceinline__ A* of(int rank) const {
    return plan_.pieces == 1 ? sums_.of_group : sums_.mail + rank * 2 * plan_.groups;
  }

 private:
  const GroupNormHeld& plan_;
  const HeldSums<A>& sums_;
  SharedBarrier barrier_{};
};

// Calls use(group, k, lanes, merged) with each of the group's lanes k, over what get(rank's
// of_group, rank, group) makes of the blocks of the cluster; a barrier follows.
template <class Fold, class A, class Get, class Use>
__device__ __forceinline__ void merge_cluster(const GroupNormHeld& plan, HeldMail<A>& mail,
                                              Get&& get, Use&& use) {
  mail.exchange();
  constexpr int kOfWarp = kWarp / kMaxCluster;
  const int rank = static_cast<int>(threadIdx.x) % kMaxCluster;
  const int of_warp = static_cast<int>(threadIdx.x) / kMaxCluster % kOfWarp;
  for (int from = static_cast<int>(threadIdx.x) / kWarp * kOfWarp; from < plan.groups;
       from += GroupNormHeld::kThreads / kMaxCluster) {  // all lanes of a warp alike
    const int group = from + of_warp;
    decltype(get(mail.of(0), 0, 0)) value{};
    if (rank < plan.pieces && group < plan.groups) value = get(mail.of(rank), rank, group);
    value = Fold::template fold<kMaxCluster>(value);
    if (group < plan.groups) use(group, rank, kMaxCluster, value);
  }
  __syncthreads();
}

// Calls f(group, k, lanes) with each of a group's lanes k, for all groups; whole warps call, also
// for groups beyond the last.
template <class F>
__device__ __forceinline__ void for_each_group(const GroupNormHeld& plan, F&& f) {
  const int width = plan.lanes_per_group, thread = static_cast<int>(threadIdx.x);
  const int of_warp = kWarp / width;
  for (int from = thread / kWarp * of_warp; from < plan.groups;
       from += GroupNormHeld::kThreads / width)
    f(from + thread % kWarp / width, thread % width, width);
}

// Calls f(place in of_slot, slot) for each slot of a channel.
template <class F>
__device__ __forceinline__ void for_each_slot(const GroupNormHeld& plan, int c, F&& f) {
  for (int i = 0; i < plan.slots; ++i) f(i * plan.tile + c, i);
}

// Calls f(channel of the tile) for each channel of the group that falls to lane k.
template <class F>
__device__ __forceinline__ void for_each_channel(const GroupNormHeld& plan, int group, int k,
                                                 int lanes, F&& f) {
  if (group >= plan.groups) return;
  for (; k < plan.channels; k += lanes) f(group * plan.channels + k);
}

}  // namespace gradus
