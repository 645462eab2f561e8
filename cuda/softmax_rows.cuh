// Softmax of 16-bit rows that a warp or a block has in registers.
#pragma once

#include "cuda/device/reduce.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/softmax_tile.cuh"
#include "cuda/softmax_values.cuh"
#include "cuda/with_eviction.cuh"

namespace gradus {

// Combines `value` over kLanes threads, a warp or the whole block; `of_warp`: shared memory that no
// other call uses. order: lanes pairwise, then warps.
template <int kLanes, class A, class Op>
__device__ __forceinline__ A reduce_row(A value, A* of_warp, Op op) {
  constexpr int kWarps = kLanes / kWarp;
#pragma unroll
  for (int mask = 1; mask < kWarp; mask *= 2) value = op(value, detail::shuffle_xor(value, mask));
  if constexpr (kWarps == 1) return value;
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  A all[kWarps];
#pragma unroll
  for (int i = 0; i < kWarps; ++i) all[i] = of_warp[i];
#pragma unroll
  for (int step = 1; step < kWarps; step *= 2) {
#pragma unroll
    for (int i = 0; i < kWarps; i += 2 * step) all[i] = op(all[i], all[i + step]);
  }
  return all[0];
}

// math    core/ops/softmax.h
// grid    1-D, a block of kLanes threads per row, or a warp of a block
// passes  1, kSoftmaxRowPacks packs per thread in registers; their exponentials are held, too
// bytes   fewest = actual = 2Eb
// smem    max and sum of each warp
// needs   16-byte alignment, kLanes · kSoftmaxRowPacks >= packs
// order   a thread's packs, lanes of a warp pairwise, warps pairwise
// Packs beyond the row are -inf, whose exponentials are 0.
template <class T, int kLanes, bool kLog, Evict kEvict>
__global__ void __launch_bounds__(softmax_row_threads(kLanes), 1280 / softmax_row_threads(kLanes))
    softmax_forward_rows_in_registers(const T* x, T* __restrict__ y, int64_t rows, int packs) {
  using A = acc_t<T>;
  using Math = SoftmaxMath<T>;
  constexpr int N = kFullPack<T>, K = kSoftmaxRowPacks;
  constexpr int kRows = softmax_row_threads(kLanes) / kLanes;
  constexpr uint32_t kLeast = PairMax<T>::kLeast;
  constexpr PairMax<T> larger;
  __shared__ __align__(16) A of_warp[2][kLanes / kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t row = int64_t{blockIdx.x} * kRows + threadIdx.x / kLanes;
  const int64_t first = (row * packs + lane) * N;
  const int left = row < rows ? packs - lane : 0;
  const L2Policy<kEvict> policy;
  wait_for_previous_kernel();
  start_next_kernel();
  Raw<T, N> in[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    in[k].word = {kLeast, kLeast, kLeast, kLeast};
    if (k * kLanes < left) policy.load(in[k], x + first + k * kLanes * N);
  }
  Raw<T, 2> pair{kLeast};
#pragma unroll
  for (int k = 0; k < K; ++k) {  // 1 max
    const auto& word = in[k].word;
    pair.word = larger(pair.word, larger(larger(word.x, word.y), larger(word.z, word.w)));
  }
  const A max = reduce_row<kLanes>(SoftmaxMax{}(pair[0], pair[1]), of_warp[0], SoftmaxMax{});
  A v[K][N], sum = A(0);
#pragma unroll
  for (int k = 0; k < K; ++k) {  // 2 sum
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const A z = in[k][j] - max, e = Math::exp_of(z, kLog ? A(0) : Math::kShift);
      sum += e;
      v[k][j] = kLog ? z : e;
    }
  }
  sum = reduce_row<kLanes>(sum, of_warp[1], SumOp{});
  sum = kLog ? Math::log_of(sum) : Math::inverse(sum);
#pragma unroll
  for (int k = 0; k < K; ++k) {  // 3 write
    if (k * kLanes >= left) break;
#pragma unroll
    for (int j = 0; j < N; ++j) v[k][j] = kLog ? v[k][j] - sum : v[k][j] * sum;
    round_raw<T, N>(v[k]).store(y + first + k * kLanes * N);
  }
}

template <class T>
void softmax_forward_rows(Cuda& cuda, const SoftmaxPlan& plan, const SoftmaxForward& args) {
  const auto launch = [&](auto lanes) {
    constexpr int kLanes = lanes(), kThreads = softmax_row_threads(kLanes);
    const LaunchShape shape{
        .grid = exact_blocks(ceil_div(plan.units, kThreads / kLanes), args.name),
        .threads = kThreads};
    with_eviction<16>(cuda, args.x.nbytes(), [&](auto evict) {
      launch_sets(cuda, shape, args.x,
                  args.log ? softmax_forward_rows_in_registers<T, kLanes, true, evict()>
                           : softmax_forward_rows_in_registers<T, kLanes, false, evict()>,
                  args.x.as<const T>(), args.y.as<T>(), plan.units, static_cast<int>(plan.items));
    });
  };
  if (plan.lanes == 32) return launch(std::integral_constant<int, 32>());
  if (plan.lanes == 64) return launch(std::integral_constant<int, 64>());
  if (plan.lanes == 128) return launch(std::integral_constant<int, 128>());
  if (plan.lanes == 256) return launch(std::integral_constant<int, 256>());
  launch(std::integral_constant<int, 512>());
}

}  // namespace gradus
