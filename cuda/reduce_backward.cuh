// The gradient of any reduction of core/ops/reductions.h over any axes: element-wise, with what a
// set's gradients share computed once per thread.
#pragma once

#include "cuda/device/round.cuh"
#include "cuda/reduce.cuh"

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
  bool packed;  // along the columns in steps of 1, and aligned for packs

  template <class F>
  __device__ __forceinline__ auto terms(int64_t at) const {
    return F::template terms<DeviceMath>(static_cast<A>(dy[at]),
                                         exact != nullptr ? static_cast<A>(exact[at]) : stat0[at],
                                         stat1 != nullptr ? stat1[at] : A(0), divisor);
  }
};

// N neighbouring values, as accesses of up to 16 bytes.
template <int N, class S, class A>
__device__ __forceinline__ void load_values(A (&values)[N], const S* from) {
  constexpr int kWidth = N < kFullPack<S> ? N : kFullPack<S>;
#pragma unroll
  for (int first = 0; first < N; first += kWidth) {
    const Pack<S, kWidth> pack = load_pack<kWidth>(from + first);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) values[first + j] = static_cast<A>(pack[j]);
  }
}

// The terms of N columns.
template <class F, int N, class T, class Terms>
__device__ __forceinline__ void load_terms(Terms (&terms)[N], const ReduceStatistics<T>& of,
                                           int64_t at, int64_t step) {
  using A = acc_t<T>;
  if (!of.packed) {
#pragma unroll
    for (int j = 0; j < N; ++j) terms[j] = of.template terms<F>(at + j * step);
    return;
  }
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
    terms[j] = F::template terms<DeviceMath>(dy[j], stat0[j], stat1[j], of.divisor);
  }
}

// Calls f(u, offsets) for the U items i, i + step, ...
template <int U>
__device__ __forceinline__ void item_offsets(StridedOffsets<2> (&at)[U],
                                             const StridedPlan<2>& items, int64_t i, int64_t step) {
#pragma unroll
  for (int u = 0; u < U; ++u) {
    const int64_t item = i + u * step;
    if (items.rank <= 1) {
      at[u] = {{item * items.strides[0][0], item * items.strides[1][0]}};
    } else {
      at[u] = items.offsets(item);
    }
  }
}

// dx of U items of N elements; element j has the terms j % kTerms (one set, or a set per column).
template <class F, int U, int N, int kTerms, class T, class Terms>
__device__ __forceinline__ void write_items(T* dx, const T* x, const Terms (&terms)[kTerms],
                                            const StridedPlan<2>& items, int64_t i, int64_t step) {
  using A = acc_t<T>;
  StridedOffsets<2> at[U];
  item_offsets<U>(at, items, i, step);
  Pack<T, N> packs[U];
#pragma unroll
  for (int u = 0; u < U; ++u) packs[u] = load_pack<N>(x + at[u].at[1]);
#pragma unroll
  for (int u = 0; u < U; ++u) {
    A values[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      values[j] = F::template dx<DeviceMath>(static_cast<A>(packs[u][j]), terms[j % kTerms]);
    }
    store_pack(dx + at[u].at[0], round_pack<T>(values));
  }
}

// math:   dx = the gradient of each item of output o
// grid:   1-D; a warp per output, eight outputs to a block, or a block per chunk of an output
// passes: 1
// bytes:  fewest = actual: x read, dx written
template <class F, int N, class T>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_backward_rows(T* dx, const T* x, const __grid_constant__ ReducePlan<2> plan,
                         const ReduceStatistics<T> statistics) {
  constexpr int kUnroll = 4;
  const bool by_warp = plan.mapping == ReduceMapping::warp_per_output;
  const int lanes = by_warp ? kWarp : kReduceThreads;
  const int64_t unit = by_warp ? int64_t{blockIdx.x} * (kReduceThreads / kWarp) +
                                     static_cast<int>(threadIdx.x) / kWarp
                               : int64_t{blockIdx.x};
  const int64_t o = plan.chunks == 1 ? unit : unit / plan.chunks;
  if (o >= plan.outputs) return;
  const int64_t begin = (unit - o * plan.chunks) * plan.chunk_size;
  const int64_t end = min(begin + plan.chunk_size, plan.reduced.count);
  const StridedOffsets<3> at = plan.kept.offsets(o);
  const auto of_set = statistics.template terms<F>(at.at[2]);
  const std::decay_t<decltype(of_set)> terms[1] = {of_set};
  int64_t i = begin + static_cast<int>(threadIdx.x) % lanes;
  for (; i + (kUnroll - 1) * lanes < end; i += kUnroll * lanes) {
    write_items<F, kUnroll, N>(dx + at.at[0], x + at.at[1], terms, plan.reduced, i, lanes);
  }
  for (; i < end; i += lanes) {
    write_items<F, 1, N>(dx + at.at[0], x + at.at[1], terms, plan.reduced, i, lanes);
  }
}

// grid:   1-D, tiles of columns fastest, then chunks of rows
// passes: 1
// bytes:  fewest = actual: x read, dx written; dy and the statistics come from L2 once per chunk
template <class F, int N, class T>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_backward_columns(T* dx, const T* x, const __grid_constant__ ReducePlan<2> plan,
                            const ReduceStatistics<T> statistics) {
  using A = acc_t<T>;
  constexpr int kUnroll = 4;
  const int64_t chunk = plan.chunks == 1 ? 0 : blockIdx.x / plan.tiles;
  const int64_t tile = blockIdx.x - chunk * plan.tiles;
  const int64_t pack = tile * blockDim.x + threadIdx.x;
  const int64_t outer = pack / plan.column_packs;
  if (outer >= plan.kept.count) return;
  const int64_t column = (pack - outer * plan.column_packs) * N;
  const int64_t end = min((chunk + 1) * plan.chunk_size, plan.reduced.count);
  const StridedOffsets<3> at = plan.kept.offsets(outer);
  typename F::template Terms<A> terms[N];
  load_terms<F, N>(terms, statistics, at.at[2] + column * plan.column[2], plan.column[2]);
  T* to = dx + at.at[0] + column * plan.column[0];
  const T* from = x + at.at[1] + column * plan.column[1];
  const int64_t step = blockDim.y;
  int64_t i = chunk * plan.chunk_size + threadIdx.y;
  for (; i + (kUnroll - 1) * step < end; i += kUnroll * step) {
    write_items<F, kUnroll, N>(to, from, terms, plan.reduced, i, step);
  }
  for (; i < end; i += step) write_items<F, 1, N>(to, from, terms, plan.reduced, i, step);
}

template <class F, int N, class T>
void launch_reduce_backward(Cuda& cuda, T* dx, const T* x, const ReducePlan<2>& plan,
                            const ReduceStatistics<T>& statistics, std::string_view op) {
  if (plan.mapping == ReduceMapping::columns) {
    reduce_backward_columns<F, N>
        <<<exact_blocks(plan.tiles * plan.chunks, op), column_threads(plan), 0, cuda.stream()>>>(
            dx, x, plan, statistics);
  } else {
    reduce_backward_rows<F, N>
        <<<row_blocks(plan, op), kReduceThreads, 0, cuda.stream()>>>(dx, x, plan, statistics);
  }
}

}  // namespace gradus
