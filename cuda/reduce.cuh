// Any reduction of core/ops/reductions.h over any axes: kernels over the struct, and their
// launcher. The plan is cuda/reduce_plan.h's.
#pragma once

#include "core/ops/partial.h"
#include "cuda/context.h"
#include "cuda/device/math.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/plan.h"
#include "cuda/reduce_plan.h"

namespace gradus {

template <class F, class A>
using PartOf = Partial<A, F::kFields>;

template <class F>
struct MergeParts {
  template <class Part>
  __device__ __forceinline__ Part operator()(const Part& a, const Part& b) const {
    return F::template merge<DeviceMath>(a, b);
  }
};

// N neighbouring values, as accesses of up to 16 bytes.
template <int N, class S, class A>
__device__ __forceinline__ void store_values(S* to, const A (&values)[N]) {
  constexpr int kWidth = N < kFullPack<S> ? N : kFullPack<S>;
#pragma unroll
  for (int first = 0; first < N; first += kWidth) {
    Pack<S, kWidth> pack;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) pack[j] = static_cast<S>(values[first + j]);
    store_pack(to + first, pack);
  }
}

// Where finished sets go, or the parts of their chunks.
template <class T>
struct ReduceOutput {
  using A = acc_t<T>;
  void* y = nullptr;
  bool wide = false;   // y is in acc_t
  A* stat0 = nullptr;  // may stay so
  A* stat1 = nullptr;
  double parameter = 0;
  bool packed = false;   // along the columns in steps of 1, and aligned for packs
  A* partial = nullptr;  // [fields, chunks, outputs]; null for a single chunk

  template <class F>
  __device__ __forceinline__ void write(int64_t at, const PartOf<F, A>& part) const {
    const Reduced<A> result = F::template finish<DeviceMath>(part, parameter);
    if (wide) {
      static_cast<A*>(y)[at] = result.y;
    } else {
      static_cast<T*>(y)[at] = static_cast<T>(result.y);
    }
    if (stat0 != nullptr) stat0[at] = result.stat0;
    if (stat1 != nullptr) stat1[at] = result.stat1;
  }
  // N neighbouring columns.
  template <class F, int N>
  __device__ __forceinline__ void write(int64_t at, int64_t step,
                                        const PartOf<F, A> (&parts)[N]) const {
    if constexpr (N > 1) {
      if (packed) return write_packs<F>(at, parts);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) write<F>(at + j * step, parts[j]);
  }
  template <class F, int N>
  __device__ __forceinline__ void write_packs(int64_t at, const PartOf<F, A> (&parts)[N]) const {
    A ys[N], stats0[N], stats1[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const Reduced<A> result = F::template finish<DeviceMath>(parts[j], parameter);
      ys[j] = result.y;
      stats0[j] = result.stat0;
      stats1[j] = result.stat1;
    }
    if (wide) {
      store_values(static_cast<A*>(y) + at, ys);
    } else {
      store_values(static_cast<T*>(y) + at, ys);
    }
    if (stat0 != nullptr) store_values(stat0 + at, stats0);
    if (stat1 != nullptr) store_values(stat1 + at, stats1);
  }
  template <class F>
  __device__ __forceinline__ void write_partial(const ReducePlan<1>& plan, int64_t chunk, int64_t o,
                                                const PartOf<F, A>& part) const {
#pragma unroll
    for (int k = 0; k < F::kFields; ++k) {
      partial[(k * plan.chunks + chunk) * plan.outputs + o] = part.v[k];
    }
  }
};

template <class T>
inline constexpr int kReducePack = reduce_pack(sizeof(T));

// Loads the items i, i + step, ... of a set: addresses first, so that U loads are under way.
template <int U, int N, class T>
__device__ __forceinline__ void load_items(Pack<T, N> (&packs)[U], const T* x,
                                           const StridedPlan<1>& items, int64_t i, int64_t step) {
  if (items.rank <= 1) {
    const T* from = x + i * items.strides[0][0];
    const int64_t stride = step * items.strides[0][0];
#pragma unroll
    for (int u = 0; u < U; ++u) packs[u] = load_pack<N>(from + u * stride);
    return;
  }
  int64_t at[U];
#pragma unroll
  for (int u = 0; u < U; ++u) at[u] = items.offsets(i + u * step).at[0];
#pragma unroll
  for (int u = 0; u < U; ++u) packs[u] = load_pack<N>(x + at[u]);
}

// Merges U items into one part, in groups that fit the registers.
template <class F, int U, int N, class T>
__device__ __forceinline__ void take_row(PartOf<F, acc_t<T>>& part, const T* x,
                                         const StridedPlan<1>& items, int64_t i, int64_t step) {
  using A = acc_t<T>;
  Pack<T, N> packs[U];
  load_items<U, N>(packs, x, items, i, step);
  constexpr int kGroup = U * N < 16 ? U * N : 16;
#pragma unroll
  for (int first = 0; first < U * N; first += kGroup) {
    A values[kGroup];
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      values[j] = static_cast<A>(packs[(first + j) / N][(first + j) % N]);
    }
    part = F::template merge<DeviceMath>(part, F::template of<DeviceMath>(values));
  }
}

// Merges U rows of N neighbouring columns into their parts.
template <class F, int U, int N, class T>
__device__ __forceinline__ void take_rows(PartOf<F, acc_t<T>> (&parts)[N], const T* x,
                                          const StridedPlan<1>& items, int64_t i, int64_t step) {
  using A = acc_t<T>;
  Pack<T, N> packs[U];
  load_items<U, N>(packs, x, items, i, step);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    A values[U];
#pragma unroll
    for (int u = 0; u < U; ++u) values[u] = static_cast<A>(packs[u][j]);
    parts[j] = F::template merge<DeviceMath>(parts[j], F::template of<DeviceMath>(values));
  }
}

// The share of this thread in the sets along x.
struct RowUnit {
  int lanes, lane;
  bool is_inside;  // threads beyond the last output have nothing to do, but stay for the shuffles
  int64_t output, chunk, begin, end;

  template <int X>
  __device__ __forceinline__ explicit RowUnit(const ReducePlan<X>& plan)
      : lanes(plan.lanes), lane(static_cast<int>(threadIdx.x) & (lanes - 1)) {
    const int64_t unit =
        int64_t{blockIdx.x} * (kReduceThreads / lanes) + static_cast<int>(threadIdx.x) / lanes;
    output = plan.chunks == 1 ? unit : unit / plan.chunks;
    chunk = unit - output * plan.chunks;
    is_inside = output < plan.outputs;
    if (!is_inside) output = 0;
    begin = is_inside ? chunk * plan.chunk_size : 0;
    end = is_inside ? min(begin + plan.chunk_size, plan.reduced.count) : 0;
  }
};

// Where this thread's columns lie.
template <int X>
struct ColumnUnit {
  bool is_inside;
  int64_t outer, column;  // column counts elements

  __device__ __forceinline__ ColumnUnit(const ReducePlan<X>& plan, int64_t tile, int width) {
    const int64_t pack = tile * blockDim.x + threadIdx.x;
    outer = pack <= INT32_MAX
                ? static_cast<int64_t>(plan.column_divisor.quotient(static_cast<uint32_t>(pack)))
                : pack / plan.column_packs;
    column = (pack - outer * plan.column_packs) * width;
    is_inside = outer < plan.kept.count;
  }
};

// math:   y[o] = the reduction of the items of output o
// grid:   1-D; plan.lanes threads per output, neighbouring outputs side by side, or a block per
//         chunk of an output, the chunks of an output side by side
// passes: 1
// bytes:  fewest = actual, beside one part per chunk
// smem:   one part per warp
// order:  threads step through the items in groups of up to 16 values, then merge pairwise
template <class F, int N, class T>
__global__ void __launch_bounds__(kReduceThreads, 4)
    reduce_forward_rows(const T* __restrict__ x, const __grid_constant__ ReducePlan<1> plan,
                        const ReduceOutput<T> output) {
  using A = acc_t<T>;
  constexpr int kUnroll = 4;
  const RowUnit of(plan);
  const StridedOffsets<2> at = plan.kept.offsets(of.output);
  PartOf<F, A> part = F::template identity<A>();
  int64_t i = of.begin + of.lane;
  for (; i + (kUnroll - 1) * of.lanes < of.end; i += kUnroll * of.lanes) {
    take_row<F, kUnroll, N>(part, x + at.at[0], plan.reduced, i, of.lanes);
  }
  for (; i < of.end; i += of.lanes) {
    take_row<F, 1, N>(part, x + at.at[0], plan.reduced, i, of.lanes);
  }
  start_next_kernel();
  if (of.lanes <= kWarp) {
    for (int mask = 1; mask < of.lanes; mask *= 2) {
      const PartOf<F, A> other = detail::shuffle_xor(part, mask);
      part = (of.lane & mask) != 0 ? F::template merge<DeviceMath>(other, part)
                                   : F::template merge<DeviceMath>(part, other);
    }
  } else {
    part = block_reduce(part, MergeParts<F>{}, F::template identity<A>());
  }
  if (of.lane != 0 || !of.is_inside) return;
  if (output.partial != nullptr) {
    output.template write_partial<F>(plan, of.chunk, of.output, part);
  } else {
    output.template write<F>(at.at[1], part);
  }
}

// grid:   1-D, tiles of columns fastest, then chunks of rows
// passes: 1
// bytes:  fewest = actual, beside one part per chunk
// smem:   kReduceThreads x N parts where several threads share a column
// needs:  blockDim.y a power of two
// order:  threads above each other step through the rows, eight at a time, then merge pairwise
template <class F, int N, class T>
__global__ void __launch_bounds__(kReduceThreads, 2)
    reduce_forward_columns(const T* __restrict__ x, const __grid_constant__ ReducePlan<1> plan,
                           const ReduceOutput<T> output) {
  using A = acc_t<T>;
  constexpr int kUnroll = 8;
  __shared__ A slots[F::kFields][N][kReduceThreads];
  const int64_t chunk = plan.chunks == 1 ? 0 : blockIdx.x / plan.tiles;
  const int64_t tile = blockIdx.x - chunk * plan.tiles;
  const ColumnUnit<1> of(plan, tile, N);
  const int64_t end = min((chunk + 1) * plan.chunk_size, plan.reduced.count);
  const StridedOffsets<2> at = plan.kept.offsets(of.is_inside ? of.outer : 0);
  // 1 rows
  PartOf<F, A> parts[N];
#pragma unroll
  for (int j = 0; j < N; ++j) parts[j] = F::template identity<A>();
  if (of.is_inside) {
    const T* from = x + at.at[0] + of.column * plan.column[0];
    const int64_t step = blockDim.y;
    int64_t i = chunk * plan.chunk_size + threadIdx.y;
    for (; i + (kUnroll - 1) * step < end; i += kUnroll * step) {
      take_rows<F, kUnroll, N>(parts, from, plan.reduced, i, step);
    }
    for (; i < end; i += step) take_rows<F, 1, N>(parts, from, plan.reduced, i, step);
  }
  start_next_kernel();
  // 2 threads above each other
  const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
  for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.y >= half && threadIdx.y < 2 * half) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
#pragma unroll
        for (int k = 0; k < F::kFields; ++k) slots[k][j][thread] = parts[j].v[k];
      }
    }
    __syncthreads();
    if (threadIdx.y < half) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        PartOf<F, A> below;
#pragma unroll
        for (int k = 0; k < F::kFields; ++k) below.v[k] = slots[k][j][thread + half * blockDim.x];
        parts[j] = F::template merge<DeviceMath>(parts[j], below);
      }
    }
  }
  // 3 write
  if (threadIdx.y != 0 || !of.is_inside) return;
  if (output.partial == nullptr) {
    output.template write<F, N>(at.at[1] + of.column * plan.column[1], plan.column[1], parts);
    return;
  }
#pragma unroll
  for (int j = 0; j < N; ++j) {
    output.template write_partial<F>(plan, chunk, of.outer * plan.columns + of.column + j,
                                     parts[j]);
  }
}

// grid:   1-D, a warp per output
// passes: 1 over the parts of the chunks
// order:  lanes step through the chunks; each merges in order, then pairwise
template <class F, class T>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_forward_chunks(const __grid_constant__ ReducePlan<1> plan,
                          const ReduceOutput<T> output) {
  using A = acc_t<T>;
  const int64_t o =
      int64_t{blockIdx.x} * (kReduceThreads / kWarp) + static_cast<int>(threadIdx.x) / kWarp;
  if (o >= plan.outputs) return;
  const int lane = threadIdx.x % kWarp;
  wait_for_previous_kernel();
  PartOf<F, A> part = F::template identity<A>();
  for (int64_t chunk = lane; chunk < plan.chunks; chunk += kWarp) {
    PartOf<F, A> next;
#pragma unroll
    for (int k = 0; k < F::kFields; ++k) {
      next.v[k] = output.partial[(k * plan.chunks + chunk) * plan.outputs + o];
    }
    part = F::template merge<DeviceMath>(part, next);
  }
  part = warp_reduce(part, MergeParts<F>{});
  if (lane != 0) return;
  const int64_t outer = o / plan.columns;
  output.template write<F>(
      plan.kept.offsets(outer).at[1] + (o - outer * plan.columns) * plan.column[1], part);
}

// Blocks of kReduceThreads threads for the units of a plan of either direction.
template <int X>
unsigned row_blocks(const ReducePlan<X>& plan, std::string_view op) {
  const int64_t per_block = kReduceThreads / plan.lanes;
  return exact_blocks(ceil_div(plan.outputs * plan.chunks, per_block), op);
}
template <int X>
dim3 column_threads(const ReducePlan<X>& plan) {
  return {static_cast<unsigned>(plan.block_x),
          static_cast<unsigned>(kReduceThreads / plan.block_x)};
}

template <class F, int N, class T>
void launch_reduce_forward(Cuda& cuda, const T* x, const ReducePlan<1>& plan,
                           const ReduceOutput<T>& output, std::string_view op) {
  if (plan.mapping == ReduceMapping::columns) {
    reduce_forward_columns<F, N>
        <<<exact_blocks(plan.tiles * plan.chunks, op), column_threads(plan), 0, cuda.stream()>>>(
            x, plan, output);
  } else {
    reduce_forward_rows<F, N>
        <<<row_blocks(plan, op), kReduceThreads, 0, cuda.stream()>>>(x, plan, output);
  }
  if (plan.chunks > 1) {
    const int64_t blocks = ceil_div(plan.outputs, kReduceThreads / kWarp);
    launch_next_kernel(cuda, {.grid = exact_blocks(blocks, op), .threads = kReduceThreads},
                       reduce_forward_chunks<F, T>, plan, output);
  }
}

// Reduces x, which is not empty, into what `output` points to.
template <class F, class T>
void reduce_forward(Cuda& cuda, const AnyView& x, const AnyView& y, ReduceOutput<T> output,
                    std::string_view op) {
  using A = acc_t<T>;
  const ReducePlan<1> plan = plan_reduce(x, y);
  const auto bytes = static_cast<size_t>(plan.chunks * plan.outputs * F::kFields) * sizeof(A);
  output.packed =
      plan.packed && plan.column[1] == 1 &&
      steps_in_packs(plan.kept, 1, kReducePack<T>, {y.data, output.stat0, output.stat1});
  output.partial = plan.chunks > 1 ? static_cast<A*>(cuda.workspace(bytes)) : nullptr;
  if (plan.packed) {
    launch_reduce_forward<F, kReducePack<T>>(cuda, x.as<T>(), plan, output, op);
  } else {
    launch_reduce_forward<F, 1>(cuda, x.as<T>(), plan, output, op);
  }
}

}  // namespace gradus
