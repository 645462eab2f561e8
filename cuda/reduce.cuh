// Any reduction of core/ops/reductions.h over any axes: kernels over the struct, and their
// launcher. The plan is cuda/reduce_plan.h's.
#pragma once

#include "cuda/context.h"
#include "cuda/launch_kernel.cuh"
#include "cuda/plan.h"
#include "cuda/reduce_cluster.cuh"
#include "cuda/reduce_short_rows.cuh"
#include "cuda/reduce_turn.cuh"

namespace gradus {

// math:   y[o] = the reduction of the items of output o
// grid:   1-D; plan.lanes threads per output, neighbouring outputs side by side, or a block per
//         chunk of an output, the chunks of an output side by side
// passes: 1
// bytes:  fewest = actual, beside one part per chunk
// smem:   one part per warp
// order:  threads step through the items in groups of up to 16 values, then merge pairwise
template <class F, int N, class T>
__global__ void __launch_bounds__(kReduceThreads, 3)
    reduce_forward_rows(const T* x, const __grid_constant__ ReducePlan<1> plan,
                        const ReduceOutput<T> output) {
  using A = acc_t<T>;
  const RowUnit of(plan);
  const StridedOffsets<2> at = place_of(plan.kept, of.output);
  const T* from = x + at.at[0];
  PartOf<F, A> part = F::template identity<A>();
  int64_t i = of.begin + of.lane;
  ItemWalk<kAnyAxes<N>, 0, 1> walk(plan, i);
  wait_for_previous_kernel();
  for (; i + 7 * of.lanes < of.end; i += 8 * of.lanes) take_row<F, 8, N>(part, from, walk);
  if (i + 3 * of.lanes < of.end) {
    take_row<F, 4, N>(part, from, walk);
    i += 4 * of.lanes;
  }
  for (; i < of.end; i += of.lanes) take_row<F, 1, N>(part, from, walk);
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
    output.template write_partial<F>(plan.chunks, plan.outputs, of.chunk, of.output, part);
  } else {
    output.template write<F>(at.at[1], part);
  }
}

// The same where a cluster has the chunks of an output.
// smem:   in the first block of a cluster one part per warp of all its blocks
// needs:  fits_cluster(plan), hence sets that 32 bits count; four blocks of packs to a
//         multiprocessor, so that 64 clusters of eight are about a wave
template <class F, int N, class T>
__global__ void __launch_bounds__(kReduceThreads, N > 1 ? 4 : 3)
    reduce_forward_cluster(const T* x, const __grid_constant__ ReducePlan<1> plan,
                           const ReduceOutput<T> output) {
  using A = acc_t<T>;
  constexpr int kStep = kReduceThreads;
  const int thread = static_cast<int>(threadIdx.x), chunks = static_cast<int>(plan.chunks);
  const int o = static_cast<int>(blockIdx.x) / chunks;
  const int chunk = static_cast<int>(blockIdx.x) - o * chunks;
  cluster_parts<F, A>().open(chunk, chunks);
  const StridedOffsets<2> at = place_of(plan.kept, o);
  const T* from = x + at.at[0];
  PartOf<F, A> part = F::template identity<A>();
  const int size = static_cast<int>(plan.chunk_size);
  const int end = min((chunk + 1) * size, static_cast<int>(plan.reduced.count));
  int i = chunk * size + thread;
  ItemWalk<kAnyAxes<N>, 0, 1> walk(plan, i);
  wait_for_previous_kernel();
  // Where blocks fill the card, the next ones find but the places that these leave, as many on
  // every multiprocessor. Where not, they would gather on some: they start behind this kernel.
  if (plan.fills_card) start_next_kernel();
#pragma unroll 1
  for (; i + 7 * kStep < end; i += 8 * kStep) take_row<F, 8, N>(part, from, walk);
  if (i + 3 * kStep < end) {
    take_row<F, 4, N>(part, from, walk);
    i += 4 * kStep;
  }
#pragma unroll 1
  for (; i < end; i += kStep) take_row<F, 1, N>(part, from, walk);
  cluster_parts<F, A>().merge(part, chunk, chunks);
  if (chunk == 0 && thread == 0) output.template write<F>(at.at[1], part);
}

// The tile and the chunk of a block of the kernels of columns.
template <int N>
struct ColumnBlock {
  int64_t chunk, tile;
  ColumnUnit<1> of;

  __device__ __forceinline__ explicit ColumnBlock(const ReducePlan<1>& plan)
      : chunk(plan.chunks == 1 ? 0 : blockIdx.x / plan.tiles),
        tile(blockIdx.x - chunk * plan.tiles),
        of(plan, tile * blockDim.x + threadIdx.x, N) {}
  template <class T>
  __device__ __forceinline__ const T* first(const T* x, const ReducePlan<1>& plan) const {
    return x + place_of(plan.kept, of.is_inside ? of.outer : 0).at[0] + of.column * plan.column[0];
  }
};

// Merges the parts that the threads of a block left in `slots`, N columns of each; a thread takes a
// column, or more where the tile is wider than the block.
template <class F, int N, class T, class A, int kSlots>
__device__ __forceinline__ void write_columns(A (&slots)[F::kFields][kSlots],
                                              const ReducePlan<1>& plan,
                                              const ReduceOutput<T>& output,
                                              const ColumnBlock<N>& block) {
  const int width = static_cast<int>(blockDim.x) * N;
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  const int groups = max(kReduceThreads / width, 1);
  const int rows = static_cast<int>(blockDim.y) / groups, group = thread / width;
  for (int c = thread & (width - 1); c < width; c += kReduceThreads) {
    const PartOf<F, A> part = merge_column<F>(slots, c, width, rows, group, groups);
    const ColumnUnit<1> to(plan, block.tile * blockDim.x + c / N, N);
    if (group != 0 || !to.is_inside) continue;
    const int64_t column = to.column + c % N;
    if (output.partial != nullptr) {
      output.template write_partial<F>(plan.chunks, plan.outputs, block.chunk,
                                       to.outer * plan.columns + column, part);
    } else {
      const StridedOffsets<2> in = place_of(plan.kept, to.outer);
      output.template write<F>(in.at[1] + column * plan.column[1], part);
    }
  }
}

// grid:   1-D, tiles of columns fastest, then chunks of rows
// passes: 1
// bytes:  fewest = actual, beside one part per chunk
// smem:   kReduceThreads x N parts, so that all threads merge and finish columns
// needs:  blockDim.x and blockDim.y powers of two; no stack (bench/log_reduce.md)
// order:  threads above each other step through the rows, eight at a time; then N of them merge in
//         order, and pairwise what is left of a tile that is narrower than the block
template <class F, int N, class T>
__global__ void __launch_bounds__(kReduceThreads, F::kFields < 3 ? 3 : 2)
    reduce_forward_columns(const T* x, const __grid_constant__ ReducePlan<1> plan,
                           const ReduceOutput<T> output) {
  using A = acc_t<T>;
  constexpr int kUnroll = detail::kLeastRows;
  __shared__ alignas(16) A slots[F::kFields][kReduceThreads * N];
  const ColumnBlock<N> block(plan);
  const int64_t end = min((block.chunk + 1) * plan.chunk_size, plan.reduced.count);
  wait_for_previous_kernel();
  PartOf<F, A> parts[N];
#pragma unroll
  for (int j = 0; j < N; ++j) parts[j] = F::template identity<A>();
  if (block.of.is_inside) {
    const T* from = block.first(x, plan);
    const int64_t step = blockDim.y;
    int64_t i = block.chunk * plan.chunk_size + threadIdx.y;
    ItemWalk<kAnyAxes<N>, 0, 1> walk(plan, i);
    for (; i + (kUnroll - 1) * step < end; i += kUnroll * step) {
      take_rows<F, kUnroll, N>(parts, from, walk);
    }
    for (; i < end; i += step) take_rows<F, 1, N>(parts, from, walk);
  }
  start_next_kernel();
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  store_parts<F>(slots, thread * N, parts);
  __syncthreads();
  write_columns<F, N>(slots, plan, output, block);
}

// Where output o lies in y.
__device__ __forceinline__ int64_t place_in_y(const ReducePlan<1>& plan, int64_t o) {
  const int64_t outer = o / plan.columns;
  return place_of(plan.kept, outer).at[1] + (o - outer * plan.columns) * plan.column[1];
}

// grid:   1-D, a block of one warp per output
// passes: 1 over the parts of the chunks
// order:  lanes step through the chunks, eight loads at a time; each merges in order, then pairwise
template <class F, class T>
__global__ void __launch_bounds__(kWarp)
    reduce_forward_chunks(const __grid_constant__ ReducePlan<1> plan,
                          const ReduceOutput<T> output) {
  using A = acc_t<T>;
  constexpr int kUnroll = 8;
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t o = blockIdx.x, to = place_in_y(plan, o);
  start_next_kernel();
  wait_for_previous_kernel();
  PartOf<F, A> part = F::template identity<A>();
  for (int64_t first = lane; first < plan.chunks; first += kUnroll * kWarp) {
    PartOf<F, A> next[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t chunk = first + u * kWarp;
      if (chunk >= plan.chunks) continue;
#pragma unroll
      for (int k = 0; k < F::kFields; ++k) {
        next[u].v[k] = output.partial[(k * plan.chunks + chunk) * plan.outputs + o];
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u * kWarp < plan.chunks) part = F::template merge<DeviceMath>(part, next[u]);
    }
  }
  part = warp_reduce(part, MergeParts<F>{});
  if (lane == 0) output.template write<F>(to, part);
}

// The same for many outputs.
// grid:   1-D, a block per 32 neighbouring outputs, eight threads for each
// smem:   one part per thread
// order:  threads of an output step through the chunks, each merges in order, then pairwise
template <class F, class T>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_forward_chunks_across(const __grid_constant__ ReducePlan<1> plan,
                                 const ReduceOutput<T> output) {
  using A = acc_t<T>;
  constexpr int kGroups = kReduceThreads / kWarp;
  __shared__ A slots[F::kFields][kReduceThreads];
  const int lane = threadIdx.x % kWarp, group = threadIdx.x / kWarp;
  const int64_t o = int64_t{blockIdx.x} * kWarp + lane;
  const bool is_inside = o < plan.outputs;
  const int64_t to = is_inside ? place_in_y(plan, o) : 0;
  wait_for_previous_kernel();
  PartOf<F, A> part = F::template identity<A>();
#pragma unroll 4
  for (int64_t chunk = group; is_inside && chunk < plan.chunks; chunk += kGroups) {
    PartOf<F, A> next;
#pragma unroll
    for (int k = 0; k < F::kFields; ++k) {
      next.v[k] = output.partial[(k * plan.chunks + chunk) * plan.outputs + o];
    }
    part = F::template merge<DeviceMath>(part, next);
  }
#pragma unroll
  for (int k = 0; k < F::kFields; ++k) slots[k][threadIdx.x] = part.v[k];
  __syncthreads();
  part = merge_column<F>(slots, lane, kWarp, 1, group, kGroups);
  if (group == 0 && is_inside) output.template write<F>(to, part);
}

// Blocks of kReduceThreads threads for the units of a plan of either direction.
template <int X>
unsigned row_blocks(const ReducePlan<X>& plan, std::string_view op) {
  const int64_t per_block = kReduceThreads / plan.lanes;
  return exact_blocks(ceil_div(plan.outputs * plan.chunks, per_block), op);
}
template <int X>
LaunchShape column_shape(const ReducePlan<X>& plan, std::string_view op) {
  return {.grid = exact_blocks(plan.tiles * plan.chunks, op),
          .threads = plan.block_x,
          .rows = kReduceThreads / plan.block_x};
}

template <class F, int N, class T>
void launch_reduce_forward(Cuda& cuda, const T* x, const ReducePlan<1>& plan,
                           const ReduceOutput<T>& output, std::string_view op) {
  if (plan.mapping == ReduceMapping::columns) {
    if (!launch_reduce_turn<F, N>(cuda, x, plan, output, op)) {
      launch_overlapping(cuda, column_shape(plan, op), reduce_forward_columns<F, N, T>, x, plan,
                         output);
    }
  } else {
    const LaunchShape shape{.grid = dim3(row_blocks(plan, op)),
                            .threads = kReduceThreads,
                            .cluster = plan.clustered ? static_cast<int>(plan.chunks) : 1};
    const auto kernel =
        plan.clustered ? reduce_forward_cluster<F, N, T> : reduce_forward_rows<F, N, T>;
    launch_overlapping(cuda, shape, kernel, x, plan, output);
  }
  if (output.partial == nullptr) return;
  if (merges_across(plan)) {
    const int64_t blocks = ceil_div(plan.outputs, kWarp);
    launch_overlapping(cuda, {.grid = exact_blocks(blocks, op), .threads = kReduceThreads},
                       reduce_forward_chunks_across<F, T>, plan, output);
  } else {
    launch_overlapping(cuda, {.grid = exact_blocks(plan.outputs, op), .threads = kWarp},
                       reduce_forward_chunks<F, T>, plan, output);
  }
}

// Reduces x, which is not empty, into what `output` points to.
template <class F, class T>
void reduce_forward(Cuda& cuda, const AnyView& x, const AnyView& y, ReduceOutput<T> output,
                    std::string_view op) {
  using A = acc_t<T>;
  ReducePlan<1> plan = plan_reduce(x, y);
  static_assert(detail::kClusterChunks <= kMaxCluster);
  plan.clustered = fits_cluster(plan) && cuda.has_hopper_features();
  const auto bytes = static_cast<size_t>(plan.chunks * plan.outputs * F::kFields) * sizeof(A);
  const bool two_stages = plan.chunks > 1 && !plan.clustered;
  output.partial = two_stages ? static_cast<A*>(cuda.workspace(bytes)) : nullptr;
  if constexpr (kReducePack < T >> 1) {
    if (launch_reduce_short_rows<F>(cuda, x.as<T>(), plan, output, op)) return;
  }
  if (plan.packed) {
    launch_reduce_forward<F, kReducePack<T>>(cuda, x.as<T>(), plan, output, op);
  } else {
    launch_reduce_forward<F, 1>(cuda, x.as<T>(), plan, output, op);
  }
}

}  // namespace gradus
