// Softmax of 16-bit sets side by side. Their items lie in shared memory: in registers they would
// leave none to compute with; and blocks are small, to wait, compute and write at different times.
#pragma once

#include "cuda/device/quotient.cuh"
#include "cuda/softmax_tile.cuh"
#include "cuda/with_eviction.cuh"

namespace gradus {

// Calls f with the condition as a constant.
template <class F>
__device__ __forceinline__ void with_constant(bool condition, F&& f) {
  if (condition) {
    f(std::true_type());
  } else {
    f(std::false_type());
  }
}

// 16 bytes that the compiler does not keep in registers from an earlier load.
__device__ __forceinline__ uint4 load_shared(const uint4* from) {
  uint4 word;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
               : "r"(shared_address(from)));
  return word;
}

// Combines v over the lanes of a column; all threads of the block call it. slots: M values per
// warp and column, in parts of 16 bytes, that no other call uses. order: lanes of a warp pairwise,
// warps in turn.
template <class V, int M, class Op>
__device__ __forceinline__ void reduce_column(V (&v)[M], Pack<V, 4>* slots, Op op) {
  constexpr int kSide = 8;
#pragma unroll
  for (int mask = kSide; mask < kWarp; mask *= 2) {
#pragma unroll
    for (int j = 0; j < M; ++j) v[j] = op(v[j], __shfl_xor_sync(kAllLanes, v[j], mask));
  }
  const int warps = static_cast<int>(blockDim.x) / kWarp, thread = static_cast<int>(threadIdx.x);
  if (warps == 1) return;
  slots += thread % kSide;
#pragma unroll
  for (int k = 0; k < M / 4; ++k) {
    const Pack<V, 4> mine{v[4 * k], v[4 * k + 1], v[4 * k + 2], v[4 * k + 3]};
    if (thread % kWarp < kSide) slots[(k * warps + thread / kWarp) * kSide] = mine;
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < M / 4; ++k, slots += warps * kSide) {
    Pack<V, 4> all = slots[0];
#pragma unroll 4
    for (int warp = 1; warp < warps; ++warp) {
      const Pack<V, 4> other = slots[warp * kSide];
#pragma unroll
      for (int j = 0; j < 4; ++j) all[j] = op(all[j], other[j]);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) v[4 * k + j] = all[j];
  }
}

// Columns of 8 sets, `lanes` threads along each; item i of a thread lies i·lanes·inner elements
// after its first.
struct SoftmaxColumns {
  int lanes;
  int c;
  int64_t units;          // columns in all
  int64_t inner;          // elements from an item to the next
  FastDivisor per_outer;  // columns of an outer index
};

// Copies a thread's items, `step` apart, to its places in shared memory, -inf where there are none.
// whole: all are there.
template <class T, int K, Evict kEvict>
__device__ __forceinline__ void copy_column(uint4* items, const T* from, int64_t step, int lanes,
                                            int left, bool whole) {
  constexpr uint32_t kLeast = PairMax<T>::kLeast;
  const L2Policy<kEvict> policy;
#pragma unroll
  for (int i = 0; i < K; ++i, from += step) {
    if (whole || i * lanes < left) {
      policy.template copy_async<16>(shared_address(items + i * lanes * 8), from);
    } else {
      items[i * lanes * 8] = make_uint4(kLeast, kLeast, kLeast, kLeast);
    }
  }
  commit_copies();
  wait_copies<0>();
}

// math    core/ops/softmax.h
// grid    1-D, blocks of 8 columns of 8 sets, `lanes` threads along each
// passes  1, K items per thread; those that are not there are -inf
// bytes   fewest = actual = 2Eb
// smem    the items, as stored, each read by the thread that copied it; results of warps, columns
// needs   16-byte alignment; all lanes of a set in one block
// order   a thread's items, lanes of a warp pairwise, warps in turn
template <class T, int K, bool kLog, Evict kEvict>
__global__ void __launch_bounds__(512, 2)
    softmax_forward_staged_columns(const T* __restrict__ x, T* __restrict__ y,
                                   const SoftmaxColumns plan) {
  using Math = SoftmaxMath<T>;
  constexpr uint32_t kLeast = PairMax<T>::kLeast;
  const int threads = plan.lanes * 8, lane = static_cast<int>(threadIdx.x / 8);
  const int64_t unit = int64_t{blockIdx.x} * 8 + threadIdx.x % 8;
  const int64_t outer = quotient(plan.per_outer, unit), step = plan.lanes * plan.inner;
  const int64_t first =
      (outer * plan.c + lane) * plan.inner + (unit - outer * plan.per_outer.divisor) * 8;
  const int left = unit < plan.units ? plan.c - lane : 0;
  const bool whole = (K - 1) * plan.lanes < left;
  auto* items = reinterpret_cast<uint4*>(dynamic_shared()) + threadIdx.x;
  copy_column<T, K, kEvict>(items, x + first, step, plan.lanes, left, whole);
  uint32_t largest[4] = {kLeast, kLeast, kLeast, kLeast};
#pragma unroll
  for (int i = 0; i < K; ++i) {  // 1 max
    const uint4 item = items[i * threads];
    const uint32_t words[] = {item.x, item.y, item.z, item.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) largest[j] = PairMax<T>{}(largest[j], words[j]);
  }
  auto* slots = dynamic_shared() + K * threads * sizeof(uint4);
  reduce_column(largest, reinterpret_cast<Pack<uint32_t, 4>*>(slots), PairMax<T>{});
  Raw<T, 8> raw{make_uint4(largest[0], largest[1], largest[2], largest[3])};
  float max[8], shift[8], sum[8] = {}, v[8];
  raw.unpack(max);
  bool is_far = kLog;  // values and maxima are subtracted, not shifted
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    shift[j] = Math::shift_of(max[j]);
    is_far = is_far || (std::is_same_v<T, BFloat16> && !(fabsf(max[j]) <= Math::kMostShifted));
  }
  const auto exp_at = [&](auto far, float value, int j) {
    return far() ? Math::exp_of(value - max[j], kLog ? 0.0f : Math::kShift)
                 : Math::exp_of(value, shift[j]);
  };
  with_constant(is_far, [&](auto far) {
#pragma unroll
    for (int i = 0; i < K; ++i) {  // 2 sum
      raw.word = load_shared(items + i * threads);
      raw.unpack(v);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j] += exp_at(far, v[j], j);
    }
  });
  slots += threads / 4 * sizeof(uint4);  // 8 per warp
  reduce_column(sum, reinterpret_cast<Pack<float, 4>*>(slots), SumOp{});
#pragma unroll
  for (int j = 0; j < 8; ++j) sum[j] = kLog ? Math::log_of(sum[j]) : Math::inverse(sum[j]);
  T* to = y + first;
  with_constant(is_far, [&](auto far) {
#pragma unroll
    for (int i = 0; i < K; ++i, to += step) {  // 3 write
      if (!whole && i * plan.lanes >= left) break;
      raw.word = load_shared(items + i * threads);
      raw.unpack(v);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        v[j] = kLog ? v[j] - max[j] - sum[j] : exp_at(far, v[j], j) * sum[j];
      }
      raw.round(v);
      raw.store(to);
    }
  });
}

template <class T>
void softmax_forward_staged_columns(Cuda& cuda, const SoftmaxPlan& plan, const SoftmaxGeometry& g,
                                    const SoftmaxForward& args) {
  constexpr int K = kSoftmaxStagedItems;
  const SoftmaxColumns columns{plan.lanes, static_cast<int>(g.c), plan.units, g.inner,
                               FastDivisor(static_cast<uint32_t>(g.inner / plan.width))};
  // The items, and for 8 columns of every warp 4 words of maxima and 8 of sums.
  const size_t words = static_cast<size_t>(plan.threads) * (4 * K + 8 * (4 + 8) / kWarp);
  const LaunchShape shape{.grid = exact_blocks(plan.blocks, args.name),
                          .threads = plan.threads,
                          .shared_bytes = words * sizeof(uint32_t),
                          .carveout = cudaSharedmemCarveoutMaxShared};
  with_eviction<16>(cuda, args.x.nbytes(), [&](auto evict) {
    launch_kernel(cuda, shape,
                  args.log ? softmax_forward_staged_columns<T, K, true, evict()>
                           : softmax_forward_staged_columns<T, K, false, evict()>,
                  args.x.as<const T>(), args.y.as<T>(), columns);
  });
}

}  // namespace gradus
