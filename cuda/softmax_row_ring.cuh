// Softmax of rows too long for the registers of a block: blocks, or clusters of them, that stay and
// take row after row, with the next ones on their way into shared memory.
#pragma once

#include "cuda/device/cluster_mail.cuh"
#include "cuda/device/raw.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/softmax_plan.h"
#include "cuda/softmax_values.cuh"

namespace gradus {

// The largest of a thread's values.
template <int kThreads, class T>
__device__ __forceinline__ acc_t<T> thread_max(const T* values, int packs) {
  using A = acc_t<T>;
  constexpr int N = kFullPack<T>;
  Raw<T, N> raw;
  if constexpr (sizeof(T) == 2) {
    constexpr PairMax<T> larger;
    Raw<T, 2> pair{PairMax<T>::kLeast};
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < packs; i += kThreads) {
      raw.load(values + i * N);
      pair.word =
          larger(pair.word, larger(larger(raw.word.x, raw.word.y), larger(raw.word.z, raw.word.w)));
    }
    A two[2];
    pair.unpack(two);
    return SoftmaxMax{}(two[0], two[1]);
  } else {
    A max = A(-INFINITY), v[N];
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < packs; i += kThreads) {
      raw.load(values + i * N);
      raw.unpack(v);
#pragma unroll
      for (int j = 0; j < N; ++j) max = SoftmaxMax{}(max, v[j]);
    }
    return max;
  }
}

// math    core/ops/softmax.h
// grid    1-D, clusters that step over the rows, each block with `chunk` packs of N values of a row
// passes  1
// bytes   fewest = actual = 2Eb
// smem    the chunks of kSoftmaxRingRows rows, each pack read by the thread that copied it
// needs   16-byte alignment
// order   a thread's packs, threads of a block, blocks of the cluster in turn
// Measured in bf16 with 256 and 512 threads: rows of 32,000, in one block, 86 and 87 % of a copy,
// rows of 131,072, in four, 92 and 88 %.
template <class T, bool kLog, int kThreads>
__global__ void __launch_bounds__(kThreads, 1)
    softmax_forward_row_ring(const T* __restrict__ x, T* __restrict__ y,
                             const __grid_constant__ SoftmaxRing plan) {
  using A = acc_t<T>;
  using Math = SoftmaxMath<T>;
  constexpr int N = kFullPack<T>;
  constexpr A kShift = kLog ? A(0) : Math::kShift;
  __shared__ ClusterMail<A, 2> mail;
  if (plan.cluster > 1) mail.open();
  const int rank = static_cast<int>(blockIdx.x) % plan.cluster, thread = threadIdx.x;
  const int packs = min(plan.chunk, plan.packs - rank * plan.chunk);
  const int64_t step = gridDim.x / plan.cluster, first = blockIdx.x / plan.cluster;
  const int64_t offset = int64_t{rank} * plan.chunk;  // in a row, in packs
  T* ring = reinterpret_cast<T*>(dynamic_shared());
  const auto place = [&](int64_t row) { return (row * plan.packs + offset) * N; };
  const auto held = [&](int turn) { return ring + turn % kSoftmaxRingRows * plan.chunk * N; };
  const auto fetch = [&](int turn) {
    const int64_t row = first + turn * step;
    if (row < plan.rows) {
      for (int i = thread; i < packs; i += kThreads) {
        copy_async_once<16>(shared_address(held(turn) + i * N), x + place(row) + i * N);
      }
    }
    commit_copies();
  };
#pragma unroll
  for (int turn = 0; turn < kSoftmaxRingRows - 1; ++turn) fetch(turn);
  for (int turn = 0; first + turn * step < plan.rows; ++turn) {
    wait_copies<kSoftmaxRingRows - 2>();
    fetch(turn + kSoftmaxRingRows - 1);
    const T* values = held(turn);
    A sum = A(0), v[N];
    Raw<T, N> raw;
    A max = block_reduce(thread_max<kThreads>(values, packs), SoftmaxMax{}, A(-INFINITY));
    const A base = base_of(max);
#pragma unroll 2
    for (int i = thread; i < packs; i += kThreads) {  // 2 sum
      raw.load(values + i * N);
      raw.unpack(v);
#pragma unroll
      for (int j = 0; j < N; ++j) sum += Math::exp_of(v[j] - base, kShift);
    }
    sum = block_sum(sum);
    if (plan.cluster > 1) {
      const A mine[] = {max, sum};
      mail.send(turn % 2, mine, plan.cluster);
      mail.wait(turn % 2, turn / 2 % 2);
      const auto& parts = mail.of[turn % 2];
      for (int k = 0; k < plan.cluster; ++k) max = SoftmaxMax{}(max, parts[0][k]);
      sum = A(0);
      for (int k = 0; k < plan.cluster; ++k) {
        sum += parts[1][k] * Math::exp_of(parts[0][k] - base_of(max), A(0));
      }
    }
    sum = kLog ? Math::log_of(sum) : Math::inverse(sum);
    T* to = y + place(first + turn * step);
#pragma unroll 2
    for (int i = thread; i < packs; i += kThreads) {  // 3 write
      raw.load(values + i * N);
      raw.unpack(v);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        v[j] -= max;
        v[j] = kLog ? v[j] - sum : Math::exp_of(v[j], kShift) * sum;
      }
      raw.round(v);
      raw.store(to + i * N);
    }
  }
  if (plan.cluster > 1) cluster_sync();  // mail may still be on its way here
}

template <int kThreads, class T>
void launch_row_ring(Cuda& cuda, const SoftmaxRing& plan, const SoftmaxForward& args) {
  const auto kernel = args.log ? softmax_forward_row_ring<T, true, kThreads>
                               : softmax_forward_row_ring<T, false, kThreads>;
  const int shared_bytes = kSoftmaxRingRows * plan.chunk * 16;
  detail::prepare_kernel(cuda, reinterpret_cast<const void*>(kernel), cudaSharedmemCarveoutDefault);
  cudaLaunchAttribute size{};
  size.id = cudaLaunchAttributeClusterDimension;
  size.val.clusterDim = {static_cast<unsigned>(plan.cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(plan.cluster);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = cuda.stream();
  config.attrs = &size;
  config.numAttrs = 1;
  // As many as run at a time: more would start when the first have taken all their rows.
  int clusters = 0;
  cuda_check(cuda, cudaOccupancyMaxActiveClusters(&clusters, kernel, &config),
             "cudaOccupancyMaxActiveClusters");
  clusters = static_cast<int>(std::min<int64_t>(std::max(clusters, 1), plan.rows));
  config.gridDim = static_cast<unsigned>(clusters * plan.cluster);
  cuda_check(cuda, cudaLaunchKernelEx(&config, kernel, args.x.as<const T>(), args.y.as<T>(), plan),
             "cudaLaunchKernelEx");
}

template <class T>
void softmax_forward_row_ring(Cuda& cuda, const SoftmaxRing& plan, const SoftmaxForward& args) {
  if constexpr (sizeof(T) == 2) {
    if (plan.cluster == 1) return launch_row_ring<512, T>(cuda, plan, args);
  }
  launch_row_ring<256, T>(cuda, plan, args);
}

}  // namespace gradus
