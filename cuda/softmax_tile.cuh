// What the softmax kernels share: which values a thread holds, and reductions over the lanes of a
// set. The plan behind it: cuda/softmax_plan.h.
#pragma once

#include "cuda/device/quotient.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/shared.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/softmax_plan.h"

namespace gradus {

struct SoftmaxTile {
  int lanes, side;
  int first_mask, end_mask;  // lanes of a set within a warp: shuffles over these bits
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
};

// Shared memory of a block: `arrays` times one A per group, row or column, and value side by side.
template <class A>
size_t softmax_shared_bytes(const SoftmaxTile& tile, const SoftmaxPlan& plan, int arrays) {
  if (tile.groups == 1) return 0;
  const int values = plan.columns ? plan.side * plan.width : 1;
  return static_cast<size_t>(arrays * tile.groups * values) * sizeof(A);
}

// The place of a thread: its set (for columns the first of N), and its items begin, begin + lanes,
// ... below end, as offsets from the set's first value.
template <int N, bool kColumns>
struct SoftmaxPlace {
  int lane;
  bool is_active;
  int64_t chunk, set, base, begin, end;

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
    if constexpr (kColumns) {
      const int64_t outer = tile.is_small
                                ? tile.per_outer_divisor.quotient(static_cast<uint32_t>(unit))
                                : unit / tile.per_outer;
      base = outer * tile.outer_step + (unit - outer * tile.per_outer) * N;
      set = unit * N;
    } else {
      base = unit * tile.outer_step;
      set = unit;
    }
    begin = chunk * tile.chunk_items + lane;
    end = is_active ? min(tile.items, (chunk + 1) * tile.chunk_items) : 0;
  }
};

struct SoftmaxMax {
  // Passes over NaN: the sum of the exponentials does not.
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
  __device__ __forceinline__ double operator()(double a, double b) const { return fmax(a, b); }
};

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

// What a kernel does: a whole set at once, or one step of sets in chunks.
enum class SoftmaxStep : uint8_t { whole, part, write };

// Calls f(constant width, constant per_thread, constant columns) for the plan of a kernel.
template <int kFull, int kMostItems, class F>
void with_softmax_mapping(const SoftmaxPlan& plan, F&& f) {
  const auto with_items = [&](auto width, auto columns) {
    constexpr bool takes_eight = width() == 1 || kMostItems >= 8;
    if constexpr (takes_eight) {
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
