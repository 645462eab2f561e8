#include "core/ops/softmax.h"

#include "cuda/softmax_tile.cuh"

namespace gradus {
namespace {

// max x and Σ exp(x - max) of a chunk of a set, or of the whole set.
template <class A>
struct Part {
  A max, sum;
};

// Where a maximum is -inf, all values are (or NaN): their exponentials are taken as they stand, so
// that a chunk without a finite value adds 0 and not NaN.
template <class A>
__device__ __forceinline__ A shift_of(A max) {
  return max == A(-INFINITY) ? A(0) : max;
}

// math    core/ops/softmax.h; whole: y of the sets; part: parts[chunk, set]; write: y from
// parts[set] grid    1-D, blocks of `side` rows or columns (of N sets each), the chunks of a set
// side by side passes  1: K items of N values per thread in registers; 2 for sets in chunks bytes
// fewest = actual = 2Eb; 3Eb for sets in chunks smem    max and sum per group of lanes needs
// N·sizeof(T) alignment; all lanes of a set in one block order   a thread's items, lanes of a warp
// pairwise, warps in turn, chunks in turn expf and exp are within 1 ulp (CUDA C++ Programming
// Guide, mathematical functions); the quotient is a product with 1/sum, 1 ulp more. Predicted at
// 256x128x56x56: 93 % of a copy.
template <class T, int N, int K, bool kColumns, SoftmaxStep kStep>
__global__ void __launch_bounds__(1024)
    softmax_forward_lanes_per_set(const T* __restrict__ x, T* __restrict__ y,
                                  const __grid_constant__ SoftmaxTile tile, bool log,
                                  Part<acc_t<T>>* parts) {
  using A = acc_t<T>;
  constexpr int M = kColumns ? N : 1;  // sets of a thread
  const SoftmaxPlace<N, kColumns> at(tile);
  A v[K][N], max[M], sum[M];
#pragma unroll
  for (int j = 0; j < M; ++j) max[j] = A(-INFINITY), sum[j] = A(0);
#pragma unroll
  for (int i = 0; i < K; ++i) {
    const int64_t item = at.begin + i * tile.lanes;
    if (item < at.end) {
      const Pack<T, N> in = load_pack<N>(x + at.base + item * tile.item_step);
#pragma unroll
      for (int j = 0; j < N; ++j) v[i][j] = static_cast<A>(in[j]);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) v[i][j] = A(-INFINITY);
    }
  }
  if constexpr (kStep == SoftmaxStep::write) {
#pragma unroll
    for (int j = 0; j < M && at.is_active; ++j) {
      max[j] = parts[at.set + j].max;
      sum[j] = parts[at.set + j].sum;
    }
  } else {
    auto* slots = reinterpret_cast<Pack<A, M>*>(dynamic_shared());
#pragma unroll
    for (int i = 0; i < K; ++i) {  // 1 max
#pragma unroll
      for (int j = 0; j < N; ++j) max[j % M] = SoftmaxMax{}(max[j % M], v[i][j]);
    }
    reduce_lanes<kColumns>(max, tile, slots, SoftmaxMax{});
#pragma unroll
    for (int i = 0; i < K; ++i) {  // 2 sum
      if (at.begin + i * tile.lanes >= at.end) continue;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const A z = v[i][j] - (kStep == SoftmaxStep::part ? shift_of(max[j % M]) : max[j % M]);
        const A e = exp(z);
        sum[j % M] += e;
        v[i][j] = log ? z : e;
      }
    }
    reduce_lanes<kColumns>(sum, tile, slots + tile.groups * (kColumns ? tile.side : 1), SumOp{});
  }
  if constexpr (kStep == SoftmaxStep::part) {
    if (at.lane != 0 || !at.is_active) return;
#pragma unroll
    for (int j = 0; j < M; ++j) parts[at.chunk * tile.sets + at.set + j] = {max[j], sum[j]};
  } else {
#pragma unroll
    for (int j = 0; j < M; ++j) sum[j] = log ? ::log(sum[j]) : A(1) / sum[j];
#pragma unroll
    for (int i = 0; i < K; ++i) {  // 3 write
      const int64_t item = at.begin + i * tile.lanes;
      if (item >= at.end) break;
      Pack<T, N> out;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        A value = v[i][j];
        if constexpr (kStep == SoftmaxStep::write) {
          value -= max[j % M];
          if (!log) value = exp(value);
        }
        out[j] = static_cast<T>(log ? value - sum[j % M] : value * sum[j % M]);
      }
      store_pack(y + at.base + item * tile.item_step, out);
    }
  }
}

// math    parts[0, set] = the parts of all chunks together
// grid    1-D, a warp per set
// order   lanes step through the chunks, then pairwise
template <class A>
__global__ void __launch_bounds__(256)
    softmax_forward_merge(Part<A>* parts, int64_t chunks, int64_t sets) {
  const int64_t set = static_cast<int64_t>(blockIdx.x) * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (set >= sets) return;
  A max = A(-INFINITY), sum = A(0);
  for (int64_t i = lane; i < chunks; i += kWarp) max = SoftmaxMax{}(max, parts[i * sets + set].max);
  max = warp_reduce(max, SoftmaxMax{});
  for (int64_t i = lane; i < chunks; i += kWarp) {
    const Part<A> part = parts[i * sets + set];
    sum += part.sum * exp(part.max - shift_of(max));
  }
  sum = warp_sum(sum);
  if (lane == 0) parts[set] = {max, sum};
}

template <class T>
void forward(Cuda& cuda, const SoftmaxForward& args) {
  using A = acc_t<T>;
  constexpr int kMostItems = std::is_same_v<T, float> ? 8 : 4;
  const SoftmaxGeometry g = softmax_geometry(args.x, args.axis);
  const T* x = args.x.as<T>();
  T* y = args.y.as<T>();
  const SoftmaxPlan plan = plan_softmax(g, sizeof(T), 1, {x, y});
  const SoftmaxTile tile(plan, g);
  const LaunchShape shape{.grid = exact_blocks(plan.blocks, args.name),
                          .threads = plan.threads,
                          .shared_bytes = softmax_shared_bytes<A>(tile, plan, 2)};
  with_softmax_mapping<kFullPack<T>, kMostItems>(
      plan, [&](auto width, auto per_thread, auto columns) {
        constexpr int N = width(), K = per_thread();
        constexpr bool kColumns = columns();
        using enum SoftmaxStep;
        Part<A>* parts = nullptr;
        if (plan.chunks == 1) {
          launch_kernel(cuda, shape, softmax_forward_lanes_per_set<T, N, K, kColumns, whole>, x, y,
                        tile, args.log, parts);
          return;
        }
        if constexpr (K == 4) {
          const int64_t sets = plan.sets();
          parts = static_cast<Part<A>*>(
              cuda.workspace(static_cast<size_t>(plan.chunks * sets) * sizeof(Part<A>)));
          launch_kernel(cuda, shape, softmax_forward_lanes_per_set<T, N, K, kColumns, part>, x, y,
                        tile, args.log, parts);
          softmax_forward_merge<<<exact_blocks(ceil_div(sets, 256 / kWarp), args.name), 256, 0,
                                  cuda.stream()>>>(parts, plan.chunks, sets);
          launch_kernel(cuda, shape, softmax_forward_lanes_per_set<T, N, K, kColumns, write>, x, y,
                        tile, args.log, parts);
        }
      });
}

}  // namespace

void run(Cuda& cuda, const SoftmaxForward& args) {
  if (args.x.numel() == 0) return;
  visit(Floating{}, args.x.dtype,
        [&](auto type) { forward<typename decltype(type)::type>(cuda, args); });
}

}  // namespace gradus
