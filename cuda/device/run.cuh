// Runs of elements that begin and end anywhere, in global memory and, at the same place within 16
// bytes, in shared memory: whole packs are moved, and single elements at the ends.
#pragma once

#include "cuda/device/l2_policy.cuh"

namespace gradus {

// Elements from the last boundary of 16 bytes.
template <class T>
__device__ __forceinline__ int place_in_pack(const T* at) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(at) / sizeof(T) % kFullPack<T>);
}

// Of `count` elements from `first` on, calls of_pack(i) for this thread's whole packs and
// of_element(i) for its elements before and behind them.
template <class T, class OfPack, class OfElement>
__device__ __forceinline__ void for_each_of_run(const T* first, int count, int thread, int threads,
                                                OfPack&& of_pack, OfElement&& of_element) {
  constexpr int N = kFullPack<T>;
  const int head = min(count, (N - place_in_pack(first)) % N);
  const int end = head + (count - head) / N * N;
#pragma unroll 4
  for (int i = head + thread * N; i < end; i += threads * N) of_pack(i);
  for (int i = thread; i < head; i += threads) of_element(i);
  for (int i = end + thread; i < count; i += threads) of_element(i);
}

// Starts copying a run to `held` in shared memory, by all threads of the block.
template <class T, Evict kEvict = Evict::normal>
__device__ __forceinline__ void hold_run(T* held, const T* from, int count,
                                         L2Policy<kEvict> policy = {}) {
  for_each_of_run(
      from, count, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x),
      [&](int i) { policy.template copy_async<16>(shared_address(held + i), from + i); },
      [&](int i) { held[i] = from[i]; });
}

// After the last copy: all threads of the block see what has been copied.
__device__ __forceinline__ void finish_copies() {
  commit_copies();
  wait_copies<0>();
  __syncthreads();
}

// Stores a run of shared memory, by all threads of the block.
template <class T>
__device__ __forceinline__ void store_run(T* to, const T* held, int count) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const auto store = [&](int i) { to[i] = held[i]; };
  if (place_in_pack(to) == place_in_pack(held)) {
    for_each_of_run(
        held, count, thread, threads,
        [&](int i) { load_raw<kFullPack<T>>(held + i).store(to + i); }, store);
  } else {
    for (int i = thread; i < count; i += threads) store(i);
  }
}

}  // namespace gradus
