#include "core/ops/softmax.h"

#include "cuda/softmax_columns.cuh"
#include "cuda/softmax_row_ring.cuh"
#include "cuda/softmax_rows.cuh"
#include "cuda/softmax_short_rows.cuh"
#include "cuda/softmax_tile.cuh"
#include "cuda/softmax_values.cuh"
#include "cuda/with_eviction.cuh"

namespace gradus {
namespace {

// max x and Σ exp(x - max) of a chunk of a set, or of the whole set.
template <class A>
struct Part {
  A max, sum;
};

// math    core/ops/softmax.h; whole: y of the sets; part: parts[chunk, set];
//         write: y from parts[set]
// grid    1-D, blocks of `side` rows or columns (of N sets each), chunks of a set side by side
// passes  1, K items of N values per thread in registers; 2 for sets in chunks without a cluster
// bytes   fewest = actual = 2Eb; 3Eb for sets in chunks without a cluster
// smem    max and sum per group of lanes, and of the block for its cluster
// needs   N·sizeof(T) alignment; whole: all lanes of a set in one block or cluster
// order   a thread's items, lanes of a warp pairwise, warps in turn, blocks pairwise or chunks
// exp is within 1 ulp in f32 and f64; for 16 bits see SoftmaxApproximate, twice for more items
// than two.
// Predicted in f32 at 256x128x56x56, with 8 items per thread: 94 % of a copy; measured: 99 %.
template <class T, int N, int K, bool kColumns, SoftmaxStep kStep, Evict kEvict>
__global__ void __launch_bounds__(1024)
    softmax_forward_lanes_per_set(const T* x, T* __restrict__ y,
                                  const __grid_constant__ SoftmaxTile tile, bool log,
                                  Part<acc_t<T>>* parts) {
  using A = acc_t<T>;
  using Math = SoftmaxMath<T>;
  constexpr int M = kColumns ? N : 1;  // sets of a thread
  // Exponentials are computed again, not held: of more items registers have no room for them.
  constexpr bool kAgain = sizeof(T) == 2 && K > 2;
  const SoftmaxPlace<N, kColumns> at(tile);
  const A shift = log ? A(0) : Math::kShift;
  const L2Policy<kEvict> policy;
  wait_for_previous_kernel();
  start_next_kernel();
  Raw<T, N> raw[K];
  A v[K][N], max[M], sum[M];
#pragma unroll
  for (int j = 0; j < M; ++j) max[j] = A(-INFINITY), sum[j] = A(0);
#pragma unroll
  for (int i = 0; i < K; ++i) {
    if (at.has(i)) policy.load(raw[i], x + at.first + i * at.step);
    if constexpr (!kAgain) {
      if (at.has(i)) {
        raw[i].unpack(v[i]);
      } else {
#pragma unroll
        for (int j = 0; j < N; ++j) v[i][j] = A(-INFINITY);
      }
    }
  }
  if constexpr (kStep == SoftmaxStep::write) {
#pragma unroll
    for (int j = 0; j < M; ++j) {
      const Part<A> part = at.is_active ? parts[at.set + j] : Part<A>{};
      max[j] = part.max;
      sum[j] = part.sum;
    }
  } else {
    auto* slots = reinterpret_cast<Pack<A, M>*>(dynamic_shared());
#pragma unroll
    for (int i = 0; i < K; ++i) {  // 1 max
      if constexpr (kAgain) {
        if (!at.has(i)) continue;
        raw[i].unpack(v[i]);
      }
#pragma unroll
      for (int j = 0; j < N; ++j) max[j % M] = SoftmaxMax{}(max[j % M], v[i][j]);
      raw[i].forget_unpacked();
    }
    reduce_set<kColumns>(max, tile, slots, SoftmaxMax{}, A(-INFINITY));
#pragma unroll
    for (int i = 0; i < K; ++i) {  // 2 sum
      if (!at.has(i)) continue;
      if constexpr (kAgain) raw[i].unpack(v[i]);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const A z = v[i][j] - (kStep == SoftmaxStep::part ? base_of(max[j % M]) : max[j % M]);
        const A e = Math::exp_of(z, shift);
        sum[j % M] += e;
        v[i][j] = log ? z : e;
      }
      raw[i].forget_unpacked();
    }
    reduce_set<kColumns>(sum, tile, slots + tile.slots(kColumns), SumOp{}, A(0));
    if (tile.cluster > 1) cluster_arrive();
  }
  if constexpr (kStep == SoftmaxStep::part) {
    if (at.lane != 0 || !at.is_active) return;
#pragma unroll
    for (int j = 0; j < M; ++j) parts[at.chunk * tile.sets + at.set + j] = {max[j], sum[j]};
  } else {
#pragma unroll
    for (int j = 0; j < M; ++j) sum[j] = log ? Math::log_of(sum[j]) : Math::inverse(sum[j]);
#pragma unroll
    for (int i = 0; i < K; ++i) {  // 3 write
      if (!at.has(i)) break;
      if constexpr (kAgain) raw[i].unpack(v[i]);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if constexpr (kAgain || kStep == SoftmaxStep::write) {
          v[i][j] -= max[j % M];
          if (!log) v[i][j] = Math::exp_of(v[i][j], shift);
        }
        v[i][j] = log ? v[i][j] - sum[j % M] : v[i][j] * sum[j % M];
      }
      raw[i].round(v[i]);
      raw[i].store(y + at.first + i * at.step);
    }
    if (tile.cluster > 1) {
      __syncwarp();
      cluster_wait();  // the shared memory of this block may still be read
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
    sum += part.sum * exp(part.max - base_of(max));
  }
  sum = warp_sum(sum);
  if (lane == 0) parts[set] = {max, sum};
}

template <class T>
void forward(Cuda& cuda, const SoftmaxForward& args) {
  using A = acc_t<T>;
  constexpr int kMostItems = sizeof(T) <= 4 ? 8 : 4;
  const SoftmaxGeometry g = softmax_geometry(args.x, args.axis);
  const T* x = args.x.as<T>();
  T* y = args.y.as<T>();
  if (const SoftmaxShortRows rows = plan_softmax_short_rows(g, sizeof(T), {x, y}); rows.outer > 0) {
    const LaunchShape shape{.grid = exact_blocks(rows.blocks(), args.name),
                            .threads = kSoftmaxThreads,
                            .shared_bytes = static_cast<size_t>(rows.rows * rows.c) * sizeof(T)};
    return with_short_rows(rows, [&](auto per_lane) {
      launch_kernel(cuda, shape, softmax_forward_staged<T, per_lane()>, x, y, rows, args.log);
    });
  }
  if constexpr (sizeof(T) == 2) {
    const SoftmaxPlan plan = plan_softmax_staged_columns(g, {x, y});
    if (plan.blocks > 0) return softmax_forward_staged_columns<T>(cuda, plan, g, args);
  }
  const bool has_clusters = cuda.has_hopper_features();
  if constexpr (sizeof(T) <= 4) {
    const SoftmaxRing ring = plan_softmax_ring(g, sizeof(T), shared_limit(cuda), {x, y});
    if (has_clusters && ring.rows > 0) return softmax_forward_row_ring<T>(cuda, ring, args);
  }
  const SoftmaxPlan plan = plan_softmax(g, sizeof(T), kMostItems, has_clusters, {x, y});
  if constexpr (sizeof(T) == 2) {
    if (plan.has_rows_in_registers()) return softmax_forward_rows<T>(cuda, plan, args);
  }
  const SoftmaxTile tile(plan, g);
  const LaunchShape shape = softmax_shape<A>(tile, plan, 2, args.name);
  with_softmax_mapping<kFullPack<T>, kMostItems>(
      plan, [&](auto width, auto per_thread, auto columns) {
        constexpr int N = width(), K = per_thread();
        constexpr bool kColumns = columns();
        using enum SoftmaxStep;
        Part<A>* parts = nullptr;
        if (plan.chunks == 1 || plan.in_cluster) {
          with_eviction<sizeof(T) * N>(cuda, args.x.nbytes(), [&](auto evict) {
            launch_sets(cuda, shape, args.x,
                        softmax_forward_lanes_per_set<T, N, K, kColumns, whole, evict()>, x, y,
                        tile, args.log, parts);
          });
          return;
        }
        if constexpr (K == 4) {
          const int64_t sets = plan.sets();
          parts = static_cast<Part<A>*>(
              cuda.workspace(static_cast<size_t>(plan.chunks * sets) * sizeof(Part<A>)));
          launch_kernel(cuda, shape,
                        softmax_forward_lanes_per_set<T, N, K, kColumns, part, Evict::normal>, x, y,
                        tile, args.log, parts);
          softmax_forward_merge<<<exact_blocks(ceil_div(sets, 256 / kWarp), args.name), 256, 0,
                                  cuda.stream()>>>(parts, plan.chunks, sets);
          launch_kernel(cuda, shape,
                        softmax_forward_lanes_per_set<T, N, K, kColumns, write, Evict::normal>, x,
                        y, tile, args.log, parts);
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
