#include "core/ops/sum.h"

#include "core/ops/copy.h"
#include "cuda/context.h"
#include "cuda/device/reduce.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/plan.h"
#include "cuda/sum_plan.h"

namespace gradus {
namespace {

constexpr int kUnroll = 4;

// Where a finished sum goes: into y, scaled, or into the partial sums of its chunk.
template <class T>
struct SumOutput {
  void* y;
  bool wide;  // y is in acc_t
  double scale;
  acc_t<T>* partial;  // [chunks, outputs]; null for a single chunk

  __device__ void write(int64_t at, double sum) const {
    if (wide) {
      static_cast<acc_t<T>*>(y)[at] = static_cast<acc_t<T>>(sum * scale);
    } else {
      static_cast<T*>(y)[at] = static_cast<T>(sum * scale);
    }
  }
};

// sums[j] += element j of the items begin, begin + step, ... below end, in this order. Addresses
// first, then loads, then sums, so that kUnroll loads are under way at a time.
template <int N, class T>
__device__ __forceinline__ void add_items(acc_t<T> (&sums)[N], const T* x,
                                          const StridedPlan<1>& items, int64_t begin, int64_t end,
                                          int64_t step) {
  int64_t i = begin;
  for (; i + (kUnroll - 1) * step < end; i += kUnroll * step) {
    int64_t at[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) at[u] = items.offsets(i + u * step).at[0];
    Pack<T, N> packs[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) packs[u] = load_pack<N>(x + at[u]);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int j = 0; j < N; ++j) sums[j] += static_cast<acc_t<T>>(packs[u][j]);
    }
  }
  for (; i < end; i += step) {
    const Pack<T, N> pack = load_pack<N>(x + items.offsets(i).at[0]);
#pragma unroll
    for (int j = 0; j < N; ++j) sums[j] += static_cast<acc_t<T>>(pack[j]);
  }
}

// The share of one of `lanes` threads in the sum of the items [begin, end) of x.
template <int N, class T>
__device__ __forceinline__ acc_t<T> thread_sum(const T* x, const StridedPlan<1>& items,
                                               int64_t begin, int64_t end, int lane, int lanes) {
  acc_t<T> sums[N] = {};
  add_items<N>(sums, x, items, begin + lane, end, lanes);
#pragma unroll
  for (int half = N / 2; half > 0; half /= 2) {
#pragma unroll
    for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

// math:  y[o] = scale · Σ x over the items of output o
// grid:  1-D, kSumThreads / kWarp outputs per block
// bytes: fewest = actual
// order: lanes step through the items; each adds in order, then the lanes pairwise
template <int N, class T>
__global__ void __launch_bounds__(kSumThreads)
    sum_warp_per_output(const T* __restrict__ x, const __grid_constant__ SumPlan plan,
                        const SumOutput<T> output) {
  const int64_t o = static_cast<int64_t>(blockIdx.x) * (kSumThreads / kWarp) + threadIdx.x / kWarp;
  if (o >= plan.outputs) return;
  const int lane = threadIdx.x % kWarp;
  const StridedOffsets<2> at = plan.kept.offsets(o);
  const acc_t<T> sum =
      warp_sum(thread_sum<N>(x + at.at[0], plan.reduced, 0, plan.reduced.count, lane, kWarp));
  if (lane == 0) output.write(at.at[1], static_cast<double>(sum));
}

// grid:  1-D, one block per chunk of an output, the chunks of an output side by side
// bytes: fewest = actual, beside one partial sum per chunk
// order: threads step through the items of the chunk; each adds in order, then pairwise
template <int N, class T>
__global__ void __launch_bounds__(kSumThreads)
    sum_block_per_output(const T* __restrict__ x, const __grid_constant__ SumPlan plan,
                         const SumOutput<T> output) {
  const int64_t o = blockIdx.x / plan.chunks;
  const int64_t chunk = blockIdx.x - o * plan.chunks;
  const int64_t begin = chunk * plan.chunk_size;
  const int64_t end = min(begin + plan.chunk_size, plan.reduced.count);
  const StridedOffsets<2> at = plan.kept.offsets(o);
  const acc_t<T> sum =
      block_sum(thread_sum<N>(x + at.at[0], plan.reduced, begin, end, threadIdx.x, kSumThreads));
  if (threadIdx.x != 0) return;
  if (output.partial != nullptr) {
    output.partial[chunk * plan.outputs + o] = sum;
  } else {
    output.write(at.at[1], static_cast<double>(sum));
  }
}

// grid:  1-D, tiles of columns fastest, then chunks of rows, then the kept axes
// bytes: fewest = actual, beside one partial sum per chunk
// smem:  kSumThreads x N sums
// needs: blockDim.y a power of two
// order: the threads above each other step through the rows; each adds in order, then pairwise
template <int N, class T>
__global__ void __launch_bounds__(kSumThreads)
    sum_columns(const T* __restrict__ x, const __grid_constant__ SumPlan plan,
                const SumOutput<T> output) {
  using A = acc_t<T>;
  __shared__ A slots[N][kSumThreads];
  const int64_t rest = blockIdx.x / plan.tiles;
  const int64_t tile = blockIdx.x - rest * plan.tiles;
  const int64_t outer = rest / plan.chunks, chunk = rest - outer * plan.chunks;
  const int64_t column = (tile * blockDim.x + threadIdx.x) * N;
  const int64_t end = min((chunk + 1) * plan.chunk_size, plan.reduced.count);
  const StridedOffsets<2> at = plan.kept.offsets(outer);
  // 1 rows
  A sums[N] = {};
  if (column < plan.columns) {
    const T* from = x + at.at[0] + column * plan.column_x;
    add_items<N>(sums, from, plan.reduced, chunk * plan.chunk_size + threadIdx.y, end, blockDim.y);
  }
  // 2 threads above each other
  const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
  for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.y >= half && threadIdx.y < 2 * half) {
#pragma unroll
      for (int j = 0; j < N; ++j) slots[j][thread] = sums[j];
    }
    __syncthreads();
    if (threadIdx.y < half) {
#pragma unroll
      for (int j = 0; j < N; ++j) sums[j] += slots[j][thread + half * blockDim.x];
    }
  }
  // 3 write
  if (threadIdx.y != 0 || column >= plan.columns) return;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (output.partial != nullptr) {
      output.partial[chunk * plan.outputs + outer * plan.columns + column + j] = sums[j];
    } else {
      output.write(at.at[1] + (column + j) * plan.column_y, static_cast<double>(sums[j]));
    }
  }
}

// grid:  1-D, kSumThreads / kWarp outputs per block
// order: lanes step through the chunks; each adds in order, then pairwise; in f64
template <class T>
__global__ void __launch_bounds__(kSumThreads)
    sum_chunks(const __grid_constant__ SumPlan plan, const SumOutput<T> output) {
  const int64_t o = static_cast<int64_t>(blockIdx.x) * (kSumThreads / kWarp) + threadIdx.x / kWarp;
  if (o >= plan.outputs) return;
  const int lane = threadIdx.x % kWarp;
  double sum = 0.0;
  for (int64_t chunk = lane; chunk < plan.chunks; chunk += kWarp) {
    sum += static_cast<double>(output.partial[chunk * plan.outputs + o]);
  }
  sum = warp_sum(sum);
  if (lane != 0) return;
  const int64_t outer = o / plan.columns;
  output.write(plan.kept.offsets(outer).at[1] + (o - outer * plan.columns) * plan.column_y, sum);
}

template <int N, class T>
void launch_sum(Cuda& cuda, const T* x, const SumPlan& plan, const SumOutput<T>& output) {
  constexpr int64_t outputs_per_block = kSumThreads / kWarp;
  const int64_t warps_of_outputs = ceil_div(plan.outputs, outputs_per_block);
  switch (plan.mapping) {
    case SumMapping::warp_per_output:
      sum_warp_per_output<N>
          <<<exact_blocks(warps_of_outputs, "sum"), kSumThreads, 0, cuda.stream()>>>(x, plan,
                                                                                     output);
      break;
    case SumMapping::block_per_output:
      sum_block_per_output<N>
          <<<exact_blocks(plan.outputs * plan.chunks, "sum"), kSumThreads, 0, cuda.stream()>>>(
              x, plan, output);
      break;
    case SumMapping::columns: {
      const dim3 block(static_cast<unsigned>(plan.block_x),
                       static_cast<unsigned>(kSumThreads / plan.block_x));
      const int64_t blocks = plan.kept.count * plan.chunks * plan.tiles;
      sum_columns<N><<<exact_blocks(blocks, "sum"), block, 0, cuda.stream()>>>(x, plan, output);
      break;
    }
  }
  if (plan.chunks > 1) {
    sum_chunks<<<exact_blocks(warps_of_outputs, "sum"), kSumThreads, 0, cuda.stream()>>>(plan,
                                                                                         output);
  }
}

}  // namespace

void run(Cuda& cuda, const Sum& args) {
  if (args.x.numel() == 0) return run(cuda, Fill{.y = args.y, .value = 0.0 * args.scale});
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using A = acc_t<T>;
    const SumPlan plan = plan_sum(args.x, args.y);
    const bool wide = args.y.dtype != args.x.dtype;
    void* y = wide ? static_cast<void*>(args.y.as<A>()) : static_cast<void*>(args.y.as<T>());
    const auto bytes = static_cast<size_t>(plan.chunks * plan.outputs) * sizeof(A);
    A* partial = plan.chunks > 1 ? static_cast<A*>(cuda.workspace(bytes)) : nullptr;
    const SumOutput<T> output{y, wide, args.scale, partial};
    const T* x = args.x.as<T>();
    if (plan.packed) {
      launch_sum<kFullPack<T>>(cuda, x, plan, output);
    } else {
      launch_sum<1>(cuda, x, plan, output);
    }
  });
}

}  // namespace gradus
