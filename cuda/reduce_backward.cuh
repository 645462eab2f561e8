// The gradient of any reduction of core/ops/reductions.h over any axes: element-wise, with what a
// set's gradients share computed once per thread.
#pragma once

#include "core/ops/reduce.h"
#include "cuda/reduce.cuh"
#include "cuda/reduce_column_packs.h"
#include "cuda/reduce_packs_plan.h"
#include "cuda/with_eviction.cuh"

namespace gradus {

// dy and the statistics, contiguous and of one shape.
template <class T>
struct ReduceStatistics {
  using A = acc_t<T>;
  const T* dy;
  const T* exact;  // the first statistic in the storage type, or
  const A* stat0;  // in acc_t
  const A* stat1;  // may be null
  double divisor;
  bool packed = false;  // along the columns in steps of 1, and aligned for packs

  template <class F>
  __device__ __forceinline__ auto terms(int64_t at) const {
    return F::template terms<StoredMath<T>>(
        static_cast<A>(dy[at]), exact != nullptr ? static_cast<A>(exact[at]) : stat0[at],
        stat1 != nullptr ? stat1[at] : A(0), divisor);
  }
};

// The terms of N columns, with whole accesses to what is aligned for packs.
template <class F, int N, class T, class Terms>
__device__ __forceinline__ void load_packed_terms(Terms (&terms)[N], const ReduceStatistics<T>& of,
                                                  int64_t at) {
  using A = acc_t<T>;
  A dy[N], stat0[N], stat1[N] = {};
  load_values<N>(dy, of.dy + at);
  if (of.exact != nullptr) {
    load_values<N>(stat0, of.exact + at);
  } else {
    load_values<N>(stat0, of.stat0 + at);
  }
  if (of.stat1 != nullptr) load_values<N>(stat1, of.stat1 + at);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    terms[j] = F::template terms<StoredMath<T>>(dy[j], stat0[j], stat1[j], of.divisor);
  }
}

template <class F, int N, class T, class Terms>
__device__ __forceinline__ void load_terms(Terms (&terms)[N], const ReduceStatistics<T>& of,
                                           int64_t at, int64_t step) {
  if (of.packed) return load_packed_terms<F>(terms, of, at);
#pragma unroll
  for (int j = 0; j < N; ++j) terms[j] = of.template terms<F>(at + j * step);
}

// Loads the next U items of a set, those before `end`: `i` is the first, the others `step` apart.
template <int U, int N, class T, class Walk>
__device__ __forceinline__ void load_before(Pack<T, N> (&packs)[U], const T* x, Walk& walk,
                                            int64_t i, int64_t step, int64_t end) {
#pragma unroll
  for (int u = 0; u < U; ++u) {
    const int64_t at = walk.next();
    if (i + u * step < end) packs[u] = load_pack<N>(x + at);
  }
}

// The gradients of a pack, whose element j has the terms j % kTerms: one set, or one a column.
template <class F, class T, int N, class Terms, int kTerms>
__device__ __forceinline__ void gradients_of(acc_t<T> (&dx)[N], const Pack<T, N>& x,
                                             const Terms (&terms)[kTerms]) {
  widen_pack(dx, x);
#pragma unroll
  for (int j = 0; j < N; ++j) dx[j] = F::template dx<StoredMath<T>>(dx[j], terms[j % kTerms]);
}

// Writes those of items.
template <class F, int U, int N, int kTerms, class T, class Terms, class Walk>
__device__ __forceinline__ void write_before(T* dx, Walk& walk, const Pack<T, N> (&packs)[U],
                                             const Terms (&terms)[kTerms], int64_t i, int64_t step,
                                             int64_t end) {
#pragma unroll
  for (int u = 0; u < U; ++u) {
    const int64_t at = walk.next();
    if (i + u * step >= end) continue;
    acc_t<T> values[N];
    gradients_of<F>(values, packs[u], terms);
    store_rounded(dx + at, values);
  }
}

// math:   dx = the gradient of each element, a pack in a thread: of one output, or of N neighbours
// grid:   1-D, in the order of dx
// passes: 1
// bytes:  fewest = actual: x read, dx written; dy and the statistics from the caches
// needs:  what plan_backward_packs() takes; neighbours: dy and the statistics aligned to 16 bytes
template <class F, bool kNeighbours, class T>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_backward_packs(T* dx, const T* x, const __grid_constant__ PackAxes<3> axes,
                          uint32_t packs, const ReduceStatistics<T> statistics) {
  using A = acc_t<T>;
  constexpr int N = kReducePack<T>, kTerms = kNeighbours ? N : 1;
  const uint32_t i = blockIdx.x * kReduceThreads + threadIdx.x;
  const StridedOffsets<3> at = axes.offsets(i);
  wait_for_previous_kernel();
  start_next_kernel();
  if (i >= packs) return;
  const Pack<T, N> pack = load_pack_once<N>(x + at.at[1]);
  typename F::template Terms<A> terms[kTerms];
  if constexpr (kNeighbours) {
    load_terms<F, N>(terms, statistics, at.at[2], 1);
  } else {
    terms[0] = statistics.template terms<F>(at.at[2]);
  }
  A values[N];
  gradients_of<F>(values, pack, terms);
  const Raw<T, N> result = round_raw<T>(values);
  __stcs(reinterpret_cast<uint4*>(dx + at.at[0]), result.word);  // L2 keeps what outputs share
}

// math:   dx = the gradient of each item of output o, where packs do not fit
// grid:   1-D; plan.lanes threads per output, or a block per chunk of an output
// passes: 1; the first items are under way before the terms of the set are
// bytes:  fewest = actual: x read, dx written
template <class F, class T>
__global__ void __launch_bounds__(kReduceThreads, 3)
    reduce_backward_rows(T* dx, const T* x, const __grid_constant__ ReducePlan<2> plan,
                         const ReduceStatistics<T> statistics) {
  constexpr int kUnroll = 4;
  const RowUnit of(plan);
  if (!of.is_inside) return;
  const StridedOffsets<3> at = place_of(plan.kept, of.output);
  const int64_t step = plan.item_step;
  int64_t i = of.begin + of.lane;
  ItemWalk<true, 1, 2> from(plan, i);
  ItemWalk<true, 0, 2> to(plan, i);
  wait_for_previous_kernel();
  Pack<T, 1> items[kUnroll];
  load_before(items, x + at.at[1], from, i, step, of.end);
  const typename F::template Terms<acc_t<T>> terms[1] = {statistics.template terms<F>(at.at[2])};
  while (i < of.end) {
    write_before<F>(dx + at.at[0], to, items, terms, i, step, of.end);
    i += kUnroll * step;
    load_before(items, x + at.at[1], from, i, step, of.end);
  }
}

// math:   dx = the gradient of each element of packs of columns, gradient_rows() in a thread
// grid:   1-D, the chunks of rows of a tile side by side, so that what they share is in L2
// passes: 1
// bytes:  fewest = actual: x read, dx written; dy and the statistics come from L2 once per chunk
// needs:  what ColumnPacks takes; dy and the statistics aligned to 16 bytes
template <class F, int N, Evict kEvict, class T>
__global__ void __launch_bounds__(kReduceThreads, 4)
    reduce_backward_turn(T* dx, const T* x, const __grid_constant__ ColumnPacks<2> packs,
                         const FastDivisor chunks, uint32_t count,
                         const ReduceStatistics<T> statistics) {
  using A = acc_t<T>;
  constexpr int kRows = detail::gradient_rows(true);
  const uint32_t tile = chunks.quotient(blockIdx.x), down = blockDim.y;
  const uint32_t chunk = blockIdx.x - tile * chunks.divisor;
  const uint32_t pack = tile * blockDim.x + threadIdx.x, i = chunk * down * kRows + threadIdx.y;
  if (pack >= packs.count) return;
  const T* from = x + packs.place<N>(1, pack, i);
  T* to = dx + packs.place<N>(0, pack, i);
  const int64_t from_step = down * packs.row[1], to_step = down * packs.row[0];
  const L2Policy<kEvict> policy;
  wait_for_previous_kernel();
  start_next_kernel();
  Pack<T, N> rows[kRows] = {};
#pragma unroll
  for (int u = 0; u < kRows; ++u, from += from_step) {
    if (i + u * down < count) rows[u] = policy.template load_pack<N>(from);
  }
  typename F::template Terms<A> terms[N];
  load_packed_terms<F>(terms, statistics, int64_t{pack} * N);
#pragma unroll
  for (int u = 0; u < kRows; ++u, to += to_step) {
    A values[N];
    gradients_of<F>(values, rows[u], terms);
    const Raw<T, N> result = round_raw<T>(values);
    if (i + u * down < count) result.store(to);
  }
}

// The same for any columns.
// grid:   1-D, the chunks of rows of a tile side by side, so that what they share is in L2
// passes: 1; a thread has gradient_rows() rows at most
// bytes:  fewest = actual: x read, dx written; dy and the statistics come from L2 once per chunk
template <class F, int N, class T>
__global__ void __launch_bounds__(kReduceThreads, 4)
    reduce_backward_columns(T* dx, const T* x, const __grid_constant__ ReducePlan<2> plan,
                            const ReduceStatistics<T> statistics) {
  const int64_t tile = blockIdx.x / static_cast<unsigned>(plan.chunks);
  const int64_t chunk = blockIdx.x - tile * plan.chunks;
  const ColumnUnit<2> of(plan, tile * blockDim.x + threadIdx.x, N);
  if (!of.is_inside) return;
  const StridedOffsets<3> at = place_of(plan.kept, of.outer);
  const int64_t i = chunk * plan.chunk_size + threadIdx.y, end = plan.reduced.count;
  const int step = static_cast<int>(blockDim.y);
  ItemWalk<kAnyAxes<N>, 1, 2> from(plan, i);
  ItemWalk<kAnyAxes<N>, 0, 2> to(plan, i);
  wait_for_previous_kernel();
  start_next_kernel();
  Pack<T, N> packs[detail::gradient_rows(N > 1)];
  load_before(packs, x + at.at[1] + of.column * plan.column[1], from, i, step, end);
  typename F::template Terms<acc_t<T>> terms[N];
  load_terms<F, N>(terms, statistics, at.at[2] + of.column * plan.column[2], plan.column[2]);
  write_before<F>(dx + at.at[0] + of.column * plan.column[0], to, packs, terms, i, step, end);
}

template <class F, int N, class T>
void launch_reduce_backward_columns(Cuda& cuda, T* dx, const T* x, const ReducePlan<2>& plan,
                                    const ReduceStatistics<T>& statistics) {
  if constexpr (N > 1) {
    if (statistics.packed && ColumnPacks<2>::take(plan)) {
      const int64_t bytes = plan.outputs * plan.reduced.count * int64_t{sizeof(T)};
      return with_eviction<N * sizeof(T)>(cuda, 2 * bytes, [&](auto evict) {
        launch_overlapping(cuda, column_shape(plan, F::name),
                           reduce_backward_turn<F, N, evict(), T>, dx, x, ColumnPacks<2>(plan),
                           FastDivisor(static_cast<uint32_t>(plan.chunks)),
                           static_cast<uint32_t>(plan.reduced.count), statistics);
      });
    }
  }
  launch_overlapping(cuda, column_shape(plan, F::name), reduce_backward_columns<F, N, T>, dx, x,
                     plan, statistics);
}

// Launches reduce_backward_packs if it takes these tensors, or returns false.
template <class F, class T>
bool launch_reduce_backward_packs(Cuda& cuda, const ReduceBackward& args,
                                  ReduceStatistics<T> statistics) {
  const auto order = plan_backward_packs(args.dx, args.x, args.dy);
  if (!order) return false;
  statistics.packed =
      pack_width(sizeof(T), {args.dy.data, args.stat0.data, args.stat1.data}, {}) == kReducePack<T>;
  if (order->neighbours && !statistics.packed) return false;
  const auto packs = static_cast<uint32_t>(args.x.numel() / kReducePack<T>);
  const unsigned blocks = exact_blocks(ceil_div(packs, kReduceThreads), F::name);
  const auto kernel =
      order->neighbours ? reduce_backward_packs<F, true, T> : reduce_backward_packs<F, false, T>;
  launch_overlapping(cuda, {.grid = blocks, .threads = kReduceThreads}, kernel, args.dx.as<T>(),
                     args.x.as<T>(), order->axes, packs, statistics);
  return true;
}

template <class F, class T>
void launch_reduce_backward(Cuda& cuda, const ReduceBackward& args,
                            ReduceStatistics<T> statistics) {
  if constexpr (kReducePack<T> != 1) {
    if (launch_reduce_backward_packs<F, T>(cuda, args, statistics)) return;
  }
  T* dx = args.dx.as<T>();
  const T* x = args.x.as<T>();
  const ReducePlan<2> plan = plan_reduce_backward(args.dx, args.x, args.dy);
  if (plan.mapping != ReduceMapping::columns) {
    launch_overlapping(cuda, {.grid = row_blocks(plan, F::name), .threads = kReduceThreads},
                       reduce_backward_rows<F, T>, dx, x, plan, statistics);
  } else if (plan.packed) {
    statistics.packed =
        plan.column[2] == 1 && steps_in_packs(plan.kept, 2, kReducePack<T>,
                                              {args.dy.data, args.stat0.data, args.stat1.data});
    launch_reduce_backward_columns<F, kReducePack<T>>(cuda, dx, x, plan, statistics);
  } else {
    launch_reduce_backward_columns<F, 1>(cuda, dx, x, plan, statistics);
  }
}

}  // namespace gradus
