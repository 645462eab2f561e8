// Gradients of reductions over one axis across x that find the statistics of each set again, while
// a block holds it: nothing but x need be saved.
#pragma once

#include "cuda/device/l2_policy.cuh"
#include "cuda/reduce_backward.cuh"
#include "cuda/reduce_op.h"
#include "cuda/reduce_turn.cuh"

namespace gradus {

// Keeps the compiler from holding what it has unpacked of a pack beside the pack.
template <class T, int N>
__device__ __forceinline__ void forget(Pack<T, N>& pack) {
  static_assert(sizeof pack == 16);
  uint4 word;
  memcpy(&word, &pack, sizeof word);
  asm volatile("" : "+r"(word.x), "+r"(word.y), "+r"(word.z), "+r"(word.w));
  memcpy(&pack, &word, sizeof word);
}

// math:   the statistics of the sets as F::finish has them, then dx = the gradient of each element
// grid:   packs of columns
// passes: 1
// bytes:  fewest = actual: x and dy read, dx written
// smem:   a part per column and thread, then the statistics of each column in the first slots
// needs:  holds_sets(), x and dx dense; packed: dy is aligned to 16 bytes
// order:  of the statistics as in reduce_forward_turn
template <class F, int N, class T>
__global__ void __launch_bounds__(kReduceThreads, 3)
    reduce_backward_held(T* dx, const T* x, const T* dy,
                         const __grid_constant__ ColumnPacks<1> packs, double divisor,
                         bool packed) {
  using A = acc_t<T>;
  constexpr int kRows = detail::kLeastRows, kStatistics = F::kStat1 ? 2 : 1;
  static_assert(kStatistics <= F::kFields);
  __shared__ alignas(16) TurnSlots<F, N, A> slots;
  const auto block = TurnBlock<N, A>::template of<0>();
  const uint32_t pack = blockIdx.x * block.across + threadIdx.x;
  const int64_t at = packs.place<N>(0, pack, threadIdx.y), step = block.down * packs.row[0];
  const bool is_inside = pack < packs.count;
  const L2Policy<Evict::last> policy;
  wait_for_previous_kernel();
  start_next_kernel();
  Pack<T, N> rows[kRows] = {}, upstream = {};
  if (is_inside) {
#pragma unroll
    for (int u = 0; u < kRows; ++u) rows[u] = policy.template load_pack<N>(x + at + u * step);
    const T* from = dy + int64_t{pack} * N;
    if (packed) {
      upstream = load_pack<N>(from);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) upstream[j] = from[j];
    }
    store_rows(slots, block.slot(), rows);
  }
  __syncthreads();
  merge_turn(slots, block, [&](int c, const PartOf<F, A>& part) {
    const Reduced<A> result = F::template finish<DeviceMath>(part, divisor);
    slots.of[0][c] = result.stat0;
    if constexpr (F::kStat1) slots.of[1][c] = result.stat1;
  });
  __syncthreads();
  if (!is_inside) return;
#pragma unroll
  for (int u = 0; u < kRows; ++u) forget(rows[u]);
  typename F::template Terms<A> terms[N];
  const int column = static_cast<int>(threadIdx.x) * N;
  A wide[N];
  widen_pack(wide, upstream);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    terms[j] = F::template terms<StoredMath<T>>(
        wide[j], slots.of[0][column + j], F::kStat1 ? slots.of[kStatistics - 1][column + j] : A(0),
        divisor);
  }
#pragma unroll
  for (int u = 0; u < kRows; ++u) {
    A values[N];
    gradients_of<F>(values, rows[u], terms);
    store_rounded(dx + at + u * step, values);
  }
}

// Launches it for sets whose statistics were not saved.
template <class F, class T>
void launch_reduce_held(Cuda& cuda, const ReduceBackward& args) {
  constexpr int N = kReducePack<T>;
  const ReducePlan<1> plan = plan_reduce(args.x, args.dy);
  const bool fits = kFindsStatistics<F, T> && holds_sets(plan, N) && args.x.is_dense() &&
                    args.dx.is_dense() && pack_width(sizeof(T), {args.dx.data}, {}) == N;
  if (!fits) {
    fail(ErrorCode::internal, F::name, "the statistics of ", to_string(args.x), " are not saved");
  }
  if constexpr (N > 1 && kFindsStatistics<F, T>) {
    const ColumnPacks<1> packs(plan);
    const LaunchShape shape{.grid = exact_blocks(ceil_div(packs.count, plan.block_x), F::name),
                            .threads = plan.block_x,
                            .rows = kReduceThreads / plan.block_x};
    launch_overlapping(cuda, shape, reduce_backward_held<F, N, T>, args.dx.as<T>(), args.x.as<T>(),
                       args.dy.as<T>(), packs, args.divisor(),
                       pack_width(sizeof(T), {args.dy.data}, {}) == N);
  }
}

}  // namespace gradus
