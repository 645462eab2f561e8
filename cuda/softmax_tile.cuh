// What the softmax kernels share: which values a thread holds, and reductions over the lanes of a
// set. The plan behind it: cuda/softmax_plan.h.
#pragma once

#include "cuda/device/cluster.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/shared.cuh"
#include "cuda/device/strided_plan.h"
#include "cuda/device/vector.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/softmax_plan.h"
#include "cuda/softmax_values.cuh"

namespace gradus {

struct SoftmaxTile {
  int lanes, side;
  int first_mask, end_mask;  // lanes of a set within a warp: shuffles over these bits
  int cluster;               // blocks that hold a set together; 1: no cluster
  int groups;  // warps, or more threads, that hold lanes of the same sets; 1: no barrier
  int64_t units, sets, items, chunks, chunk_items;
  int64_t item_step;   // from an item to the next, in elements
  int64_t outer_step;  // elements of an outer index: of a row, or of all columns side by side
  int64_t per_outer;   // columns of an outer index
  FastDivisor per_outer_divisor;
  bool is_small;  // the divisor reaches

  SoftmaxTile(const SoftmaxPlan& p, const SoftmaxGeometry& g)
      : lanes(p.lanes),
        side(p.side),
        first_mask(p.columns ? p.side : 1),
        end_mask(p.columns ? 32 : std::min(p.lanes, 32)),
        cluster(p.in_cluster ? static_cast<int>(p.chunks) : 1),
        groups(p.threads / std::max(32, p.columns ? p.side : 1)),
        units(p.units),
        sets(p.sets()),
        items(p.items),
        chunks(p.chunks),
        chunk_items(p.chunk_items),
        item_step(p.columns ? g.inner : p.width),
        outer_step(g.c * g.inner),
        per_outer(p.columns ? g.inner / p.width : 1),
        is_small(p.units < (int64_t{1} << 31)) {
    if (!p.columns && p.lanes <= 32) groups = 1;
    if (is_small) per_outer_divisor = FastDivisor(static_cast<uint32_t>(per_outer));
  }

  // Results of parts of the lanes that a reduction passes on: of each group, and of the block to
  // its cluster.
  GRADUS_HD int slots(bool columns) const {
    return (groups > 1 ? groups * (columns ? side : 1) : 0) + (cluster > 1 ? 1 : 0);
  }
};

// The launch of a kernel with so many reductions.
template <class A>
LaunchShape softmax_shape(const SoftmaxTile& tile, const SoftmaxPlan& plan, int reductions,
                          std::string_view op) {
  const int sets = plan.columns ? plan.width : 1;
  return {
      .grid = exact_blocks(plan.blocks, op),
      .threads = plan.threads,
      .shared_bytes = static_cast<size_t>(reductions * tile.slots(plan.columns) * sets) * sizeof(A),
      .cluster = tile.cluster};
}

// Starts a kernel that takes whole sets of x while the one before ends, where it is short.
template <class... Params, class... Args>
void launch_sets(Cuda& cuda, const LaunchShape& shape, const AnyView& x, void (*kernel)(Params...),
                 const Args&... args) {
  constexpr int64_t kShortBytes = int64_t(64) << 20;
  if (x.nbytes() <= kShortBytes) return launch_overlapping(cuda, shape, kernel, args...);
  launch_kernel(cuda, shape, kernel, args...);
}

// The place of a thread: its set (for columns the first of N), and its items, of which number i
// lies at first + i·step and exists if has(i).
template <int N, bool kColumns>
struct SoftmaxPlace {
  int lane, lanes, left;
  bool is_active;
  int64_t chunk, set, first, step;

  __device__ __forceinline__ explicit SoftmaxPlace(const SoftmaxTile& tile) {
    const int thread = static_cast<int>(threadIdx.x);
    int64_t block = blockIdx.x;
    chunk = 0;
    if (tile.chunks > 1) {
      block = blockIdx.x / tile.chunks;
      chunk = blockIdx.x - block * tile.chunks;
    }
    lane = kColumns ? thread / tile.side : thread & (tile.lanes - 1);
    const int64_t unit =
        block * tile.side + (kColumns ? thread & (tile.side - 1) : thread / tile.lanes);
    is_active = unit < tile.units && lane < tile.lanes;
    const int64_t begin = chunk * tile.chunk_items + lane;
    const int64_t end = is_active ? min(tile.items, (chunk + 1) * tile.chunk_items) : 0;
    lanes = tile.lanes;
    left = end > begin ? static_cast<int>(end - begin) : 0;
    step = tile.lanes * tile.item_step;
    if constexpr (kColumns) {
      const int64_t outer = tile.is_small
                                ? tile.per_outer_divisor.quotient(static_cast<uint32_t>(unit))
                                : unit / tile.per_outer;
      first = outer * tile.outer_step + (unit - outer * tile.per_outer) * N;
      set = unit * N;
    } else {
      first = unit * tile.outer_step;
      set = unit;
    }
    first += begin * tile.item_step;
  }

  __device__ __forceinline__ bool has(int i) const { return i * lanes < left; }
};

// Combines the results of the blocks of a cluster. `slot`: shared memory that no other call uses,
// and that must live until all blocks have read it. order: blocks pairwise.
template <class A, class Op>
__device__ __forceinline__ A reduce_cluster(A value, int blocks, A* slot, Op op, A identity) {
  if (threadIdx.x == 0) *slot = value;
  cluster_sync();
  const int rank = static_cast<int>(threadIdx.x) % kMaxCluster;
  value = rank < blocks ? *in_block(slot, static_cast<unsigned>(rank)) : identity;
  return warp_reduce<kMaxCluster>(value, op);
}

// Combines each of v over the lanes of a set; all threads of the block call it. `slots`: shared
// memory that no other call uses. order: lanes of a warp pairwise, then the groups in turn.
template <bool kColumns, int M, class A, class Op>
__device__ __forceinline__ void reduce_lanes(A (&v)[M], const SoftmaxTile& tile, Pack<A, M>* slots,
                                             Op op) {
  for (int mask = tile.first_mask; mask < tile.end_mask; mask *= 2) {
#pragma unroll
    for (int j = 0; j < M; ++j) v[j] = op(v[j], __shfl_xor_sync(kAllLanes, v[j], mask));
  }
  if (tile.groups == 1) return;
  const int side = kColumns ? tile.side : 1;
  const int thread = static_cast<int>(threadIdx.x), place = thread & (side - 1);
  const int group_threads = max(32, side);
  if ((thread & (group_threads - 1)) < side) {
    Pack<A, M> mine;
#pragma unroll
    for (int j = 0; j < M; ++j) mine[j] = v[j];
    slots[thread / group_threads * side + place] = mine;
  }
  __syncthreads();
  Pack<A, M> all = slots[place];
  for (int group = 1; group < tile.groups; ++group) {
    const Pack<A, M> other = slots[group * side + place];
#pragma unroll
    for (int j = 0; j < M; ++j) all[j] = op(all[j], other[j]);
  }
#pragma unroll
  for (int j = 0; j < M; ++j) v[j] = all[j];
}

// The same over the blocks of a cluster too, where a set has one; rows only. slots: tile.slots() of
// shared memory, as for reduce_cluster().
template <bool kColumns, int M, class A, class Op>
__device__ __forceinline__ void reduce_set(A (&v)[M], const SoftmaxTile& tile, Pack<A, M>* slots,
                                           Op op, A identity) {
  reduce_lanes<kColumns>(v, tile, slots, op);
  if constexpr (!kColumns) {
    if (tile.cluster == 1) return;
    v[0] = reduce_cluster(v[0], tile.cluster, &slots[tile.groups > 1 ? tile.groups : 0][0], op,
                          identity);
  }
}

// What a kernel does: a whole set at once, or one step of sets in chunks.
enum class SoftmaxStep : uint8_t { whole, part, write };

// Calls f(constant width, constant per_thread, constant columns) for the plan of a kernel.
template <int kFull, int kMostItems, class F>
void with_softmax_mapping(const SoftmaxPlan& plan, F&& f) {
  const auto with_items = [&](auto width, auto columns) {
    if constexpr (width() == 1 || (columns() && kMostItems == 8)) {
      if (plan.per_thread == 8) return f(width, std::integral_constant<int, 8>(), columns);
    }
    if constexpr (!columns()) {
      if (plan.per_thread == 1) return f(width, std::integral_constant<int, 1>(), columns);
      if (plan.per_thread == 2) return f(width, std::integral_constant<int, 2>(), columns);
    }
    f(width, std::integral_constant<int, 4>(), columns);
  };
  const auto with_columns = [&](auto width) {
    plan.columns ? with_items(width, std::true_type()) : with_items(width, std::false_type());
  };
  plan.width == 1 ? with_columns(std::integral_constant<int, 1>())
                  : with_columns(std::integral_constant<int, kFull>());
}

}  // namespace gradus
