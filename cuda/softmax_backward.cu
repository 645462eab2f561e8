#include "core/ops/softmax.h"
#include "cuda/softmax_tile.cuh"

namespace gradus {
namespace {

// math    core/ops/softmax.h; whole: dx of the sets; part: parts[chunk, set]; write: dx from
//         parts[set]
// grid    1-D, blocks of `side` rows or columns (of N sets each), the chunks of a set side by side
// passes  1: K items of N values of y and dy per thread in registers; 2 for sets in chunks
// bytes   fewest = actual = 3Eb; 5Eb for sets in chunks
// smem    a sum per group of lanes
// needs   N·sizeof(T) alignment; all lanes of a set in one block
// order   a thread's items, lanes of a warp pairwise, warps in turn, chunks in turn
// Predicted at 256x128x56x56: 96 % of a copy.
template <class T, int N, int K, bool kColumns, SoftmaxStep kStep>
__global__ void __launch_bounds__(1024)
    softmax_backward_lanes_per_set(const T* __restrict__ y, const T* __restrict__ dy,
                                   T* __restrict__ dx, const __grid_constant__ SoftmaxTile tile,
                                   bool log, acc_t<T>* parts) {
  using A = acc_t<T>;
  constexpr int M = kColumns ? N : 1;  // sets of a thread
  const SoftmaxPlace<N, kColumns> at(tile);
  Pack<T, N> values[K], upstream[K];
#pragma unroll
  for (int i = 0; i < K; ++i) {
    const int64_t item = at.begin + i * tile.lanes;
    if (item >= at.end) continue;
    values[i] = load_pack<N>(y + at.base + item * tile.item_step);
    upstream[i] = load_pack<N>(dy + at.base + item * tile.item_step);
  }
  A sum[M];
  if constexpr (kStep == SoftmaxStep::write) {
#pragma unroll
    for (int j = 0; j < M; ++j) sum[j] = at.is_active ? parts[at.set + j] : A(0);
  } else {
#pragma unroll
    for (int j = 0; j < M; ++j) sum[j] = A(0);
#pragma unroll
    for (int i = 0; i < K; ++i) {  // 1 sum
      if (at.begin + i * tile.lanes >= at.end) continue;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const A d = static_cast<A>(upstream[i][j]);
        sum[j % M] += log ? d : d * static_cast<A>(values[i][j]);
      }
    }
    reduce_lanes<kColumns>(sum, tile, reinterpret_cast<Pack<A, M>*>(dynamic_shared()), SumOp{});
  }
  if constexpr (kStep == SoftmaxStep::part) {
    if (at.lane != 0 || !at.is_active) return;
#pragma unroll
    for (int j = 0; j < M; ++j) parts[at.chunk * tile.sets + at.set + j] = sum[j];
  } else {
#pragma unroll
    for (int i = 0; i < K; ++i) {  // 2 write
      const int64_t item = at.begin + i * tile.lanes;
      if (item >= at.end) break;
      Pack<T, N> out;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const A value = static_cast<A>(values[i][j]), d = static_cast<A>(upstream[i][j]);
        out[j] = static_cast<T>(log ? d - exp(value) * sum[j % M] : value * (d - sum[j % M]));
      }
      store_pack(dx + at.base + item * tile.item_step, out);
    }
  }
}

// math    parts[0, set] = Σ over the chunks
// grid    1-D, a warp per set
// order   lanes step through the chunks, then pairwise
template <class A>
__global__ void __launch_bounds__(256)
    softmax_backward_merge(A* parts, int64_t chunks, int64_t sets) {
  const int64_t set = static_cast<int64_t>(blockIdx.x) * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (set >= sets) return;
  A sum = A(0);
  for (int64_t i = lane; i < chunks; i += kWarp) sum += parts[i * sets + set];
  sum = warp_sum(sum);
  if (lane == 0) parts[set] = sum;
}

template <class T>
void backward(Cuda& cuda, const SoftmaxBackward& args) {
  using A = acc_t<T>;
  const SoftmaxGeometry g = softmax_geometry(args.y, args.axis);
  const T *y = args.y.as<T>(), *dy = args.dy.as<T>();
  T* dx = args.dx.as<T>();
  const SoftmaxPlan plan = plan_softmax(g, sizeof(T), 2, {y, dy, dx});
  const SoftmaxTile tile(plan, g);
  const LaunchShape shape{.grid = exact_blocks(plan.blocks, args.name),
                          .threads = plan.threads,
                          .shared_bytes = softmax_shared_bytes<A>(tile, plan, 1)};
  with_softmax_mapping<kFullPack<T>, 4>(plan, [&](auto width, auto per_thread, auto columns) {
    constexpr int N = width(), K = per_thread();
    constexpr bool kColumns = columns();
    using enum SoftmaxStep;
    A* parts = nullptr;
    if (plan.chunks == 1) {
      launch_kernel(cuda, shape, softmax_backward_lanes_per_set<T, N, K, kColumns, whole>, y, dy,
                    dx, tile, args.log, parts);
      return;
    }
    if constexpr (K == 4) {
      const int64_t sets = plan.sets();
      parts = static_cast<A*>(cuda.workspace(static_cast<size_t>(plan.chunks * sets) * sizeof(A)));
      launch_kernel(cuda, shape, softmax_backward_lanes_per_set<T, N, K, kColumns, part>, y, dy, dx,
                    tile, args.log, parts);
      softmax_backward_merge<<<exact_blocks(ceil_div(sets, 256 / kWarp), args.name), 256, 0,
                               cuda.stream()>>>(parts, plan.chunks, sets);
      launch_kernel(cuda, shape, softmax_backward_lanes_per_set<T, N, K, kColumns, write>, y, dy,
                    dx, tile, args.log, parts);
    }
  });
}

}  // namespace

void run(Cuda& cuda, const SoftmaxBackward& args) {
  if (args.y.numel() == 0) return;
  visit(Floating{}, args.y.dtype,
        [&](auto type) { backward<typename decltype(type)::type>(cuda, args); });
}

}  // namespace gradus
