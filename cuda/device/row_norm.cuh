// Pieces of the row norms' kernels: packs on their way through shared memory, and sums over the
// threads of a row.
#pragma once

#include "core/dtype.h"
#include "cuda/device/cluster_mail.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/round.cuh"
#include "cuda/device/shared.cuh"
#include "cuda/device/vector.cuh"

namespace gradus {

// Starts copying N elements into shared memory, past the first-level cache. Accesses below 4 bytes
// have no such instruction and are done at once.
template <int N, class T>
__device__ __forceinline__ void start_copy(T* to, const T* from) {
  constexpr int kBytes = N * static_cast<int>(sizeof(T));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :
                 : "r"(shared_address(to)), "l"(from)
                 : "memory");
  } else if constexpr (kBytes >= 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
                 :
                 : "r"(shared_address(to)), "l"(from), "n"(kBytes)
                 : "memory");
  } else {
    store_pack(to, load_pack<N>(from));
  }
}

// N neighbouring elements as acc_t, in accesses of up to 16 bytes.
template <int N, class T>
__device__ __forceinline__ void load_values(acc_t<T>* values, const T* from) {
  constexpr int kStep = N < kFullPack<T> ? N : kFullPack<T>;
#pragma unroll
  for (int i = 0; i < N; i += kStep) {
    const Pack<T, kStep> pack = load_pack<kStep>(from + i);
#pragma unroll
    for (int j = 0; j < kStep; ++j) values[i + j] = static_cast<acc_t<T>>(pack[j]);
  }
}

template <int N, class T>
__device__ __forceinline__ void store_values(T* to, const acc_t<T> (&values)[N]) {
  store_pack(to, round_pack<T>(values));
}

// N neighbouring acc_t in accesses of up to 16 bytes, unrounded.
template <int N, class A>
__device__ __forceinline__ void store_run(A* to, const A* values) {
  constexpr int kStep = N < kFullPack<A> ? N : kFullPack<A>;
#pragma unroll
  for (int i = 0; i < N; i += kStep) {
    Pack<A, kStep> pack;
#pragma unroll
    for (int j = 0; j < kStep; ++j) pack[j] = values[i + j];
    store_pack(to + i, pack);
  }
}

// The packs of a slot's rows on their way through shared memory, Stages rows of Count tensors at a
// time. A thread reads only what it fetched itself, so no barrier is needed.
template <class T, int N, int K, int Count, int Stages>
class RowStages {
 public:
  // Thread `lane` of `lanes` takes packs lane, lane + lanes, ... of the `packs` packs of a row.
  __device__ RowStages(int lane, int lanes, int packs)
      : lane_(lane), lanes_(lanes), packs_(packs), step_(blockDim.x * N) {
    own_ = reinterpret_cast<T*>(dynamic_shared()) + threadIdx.x * N;
  }

  // Starts fetching the row that begins at the offset `row` of each tensor, unless it is not
  // `wanted`; every call counts as one group of copies.
  __device__ __forceinline__ void fetch(const T* const (&tensors)[Count], int64_t row, bool wanted,
                                        int stage) const {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int pack = lane_ + k * lanes_;
      if (!wanted || pack >= packs_) continue;
#pragma unroll
      for (int t = 0; t < Count; ++t)
        start_copy<N>(place(stage, k, t), tensors[t] + row + pack * N);
    }
    commit_copies();
  }

  // Waits for the oldest of the rows under way.
  __device__ __forceinline__ void wait() const { wait_copies<Stages - 1>(); }

  __device__ __forceinline__ T* place(int stage, int k, int t = 0) const {
    return own_ + ((stage * K + k) * Count + t) * step_;
  }

 private:
  int lane_, lanes_, packs_, step_;
  T* own_;
};

// Sums over the threads that share a row: `lanes` of a warp by shuffles, or (kWarps) the warps of
// `lanes` threads, which meet in shared memory at a barrier of their own, or (kBlocks) those of all
// `cluster` blocks, each of which tells its sum to all. Every thread gets the sums.
template <class A, int Count, bool kWarps, bool kBlocks>
class RowSums {
 public:
  // One barrier per call is enough, since calls take turns in two halves.
  struct Meeting {
    A warps[2][Count][kWarp];
    ClusterMail<A, Count> mail;  // kBlocks only
  };

  __device__ RowSums(Meeting& meeting, int lanes, int cluster)
      : meeting_(meeting),
        lanes_(lanes),
        cluster_(cluster),
        barrier_(static_cast<int>(threadIdx.x) / lanes + 1),
        first_warp_(static_cast<int>(threadIdx.x & ~(lanes - 1)) / kWarp) {
    if (kBlocks && cluster > 1) meeting.mail.open();
  }

  __device__ __forceinline__ void operator()(A (&values)[Count]) {
    if constexpr (!kWarps) {
      for (int mask = 1; mask < lanes_; mask *= 2) add_other(values, mask);
    } else {
      add_warps(values);
      if (kBlocks && cluster_ > 1) add_blocks(values);
      half_ ^= 1;
    }
  }

 private:
  static __device__ __forceinline__ void add_other(A (&values)[Count], int mask) {
#pragma unroll
    for (int i = 0; i < Count; ++i) values[i] += detail::shuffle_xor(values[i], mask);
  }

  __device__ __forceinline__ void add_warps(A (&values)[Count]) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warps = lanes_ / kWarp;
#pragma unroll
    for (int mask = 1; mask < kWarp; mask *= 2) add_other(values, mask);
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < Count; ++i) meeting_.warps[half_][i][warp] = values[i];
    }
    asm volatile("bar.sync %0, %1;" : : "r"(barrier_), "r"(lanes_) : "memory");
#pragma unroll
    for (int i = 0; i < Count; ++i)
      values[i] = meeting_.warps[half_][i][first_warp_ + (lane & (warps - 1))];
    for (int mask = 1; mask < warps; mask *= 2) add_other(values, mask);
  }

  __device__ __forceinline__ void add_blocks(A (&values)[Count]) {
    meeting_.mail.send(half_, values, cluster_);
    meeting_.mail.wait(half_, parity_);
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      values[i] = meeting_.mail.of[half_][i][0];
      for (int block = 1; block < cluster_; ++block) values[i] += meeting_.mail.of[half_][i][block];
    }
    parity_ ^= half_;  // both boxes have been used
  }

  Meeting& meeting_;
  int lanes_, cluster_, barrier_, first_warp_;
  int half_ = 0, parity_ = 0;
};

}  // namespace gradus
