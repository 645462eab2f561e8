// Pieces of the row norms' kernels: packs on their way through shared memory, and sums over the
// threads of a row.
#pragma once

#include "core/dtype.h"
#include "cuda/device/cluster_mail.cuh"
#include "cuda/device/norm.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/shared.cuh"
#include "cuda/device/stream.cuh"

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

// The packs of a slot's rows on their way through shared memory, a row of Count tensors in each
// stage, in a block of kThreads. A thread reads only what it fetched itself, so no barrier is
// needed.
template <class T, int N, int K, int Count, int kThreads>
class RowStages {
 public:
  // Thread `lane` of `lanes` takes packs lane, lane + lanes, ... of the `packs` packs of a row.
  __device__ RowStages(int lane, int lanes, int packs)
      : lane_(lane),
        lanes_(lanes),
        packs_(packs),
        own_(reinterpret_cast<T*>(dynamic_shared()) + threadIdx.x * N) {}

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

  // Waits until no more than the `later` rows fetched last, 3 at most, are under way.
  __device__ __forceinline__ void wait(int later) const { wait_copies_but(later); }

  __device__ __forceinline__ T* place(int stage, int k, int t = 0) const {
    return own_ + ((stage * K + k) * Count + t) * (kThreads * N);
  }

 private:
  int lane_, lanes_, packs_;
  T* own_;
};

// Sums over the threads that share a row: `lanes` of a warp by shuffles, or (kWarps) the warps of
// `lanes` threads, which meet in shared memory at a barrier of their own. Every thread gets the
// sums. kLanes, if not 0, is `lanes` and, beyond a warp, all of the block, which takes fewer
// instructions.
template <class A, int Count, bool kWarps, int kLanes = 0>
class RowSums {
 public:
  // One barrier per call is enough, since calls take turns in two halves.
  using Meeting = A[2][Count][kWarp];

  __device__ RowSums(Meeting& meeting, int lanes)
      : meeting_(meeting),
        lanes_(lanes),
        barrier_(static_cast<int>(threadIdx.x) / lanes + 1),
        first_warp_(static_cast<int>(threadIdx.x & ~(lanes - 1)) / kWarp) {}

  __device__ __forceinline__ void operator()(A (&values)[Count]) {
    if constexpr (kWarps) {
      add_warps(values);
      half_ ^= 1;
    } else if constexpr (kLanes != 0) {
      add_lanes<kLanes>(values);
    } else {
      for (int mask = 1; mask < lanes_; mask *= 2) add_other(values, mask);
    }
  }

 private:
  static __device__ __forceinline__ void add_other(A (&values)[Count], int mask) {
#pragma unroll
    for (int i = 0; i < Count; ++i) values[i] += detail::shuffle_xor(values[i], mask);
  }
  template <int Lanes>
  static __device__ __forceinline__ void add_lanes(A (&values)[Count]) {
#pragma unroll
    for (int mask = 1; mask < Lanes; mask *= 2) add_other(values, mask);
  }

  __device__ __forceinline__ void add_warps(A (&values)[Count]) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    add_lanes<kWarp>(values);
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < Count; ++i) meeting_[half_][i][warp] = values[i];
    }
    if constexpr (kLanes != 0) {
      __syncthreads();
      constexpr int kCount = kLanes / kWarp;
#pragma unroll
      for (int i = 0; i < Count; ++i) {  // pairwise, as by shuffles
        A sums[kCount];
#pragma unroll
        for (int k = 0; k < kCount; ++k) sums[k] = meeting_[half_][i][k];
#pragma unroll
        for (int step = 1; step < kCount; step *= 2) {
#pragma unroll
          for (int k = 0; k < kCount; k += 2 * step) sums[k] += sums[k + step];
        }
        values[i] = sums[0];
      }
    } else {
      const int warps = lanes_ / kWarp;
      asm volatile("bar.sync %0, %1;" : : "r"(barrier_), "r"(lanes_) : "memory");
#pragma unroll
      for (int i = 0; i < Count; ++i)
        values[i] = meeting_[half_][i][first_warp_ + (lane & (warps - 1))];
      for (int mask = 1; mask < warps; mask *= 2) add_other(values, mask);
    }
  }

  Meeting& meeting_;
  int lanes_, barrier_, first_warp_;
  int half_ = 0;
};

// Sums over the blocks of a cluster, each of which tells its own to all: sent at one time and
// received at a later one, so that the way costs nothing. All threads receive what was sent last
// before they meet at a barrier of the block and send again.
template <class A, int Count>
class ClusterSums {
 public:
  using Mail = ClusterMail<A, Count>;

  __device__ ClusterSums(Mail& mail, int cluster) : mail_(mail), cluster_(cluster) {
    if (cluster > 1) mail.open();
  }

  // All threads have the same values.
  __device__ __forceinline__ void send(const A (&values)[Count]) {
    if (cluster_ > 1) {
      mail_.send(half_, values, cluster_);
      return;
    }
#pragma unroll
    for (int i = 0; i < Count; ++i) own_[i] = values[i];
  }

  __device__ __forceinline__ void receive(A (&values)[Count]) {
    if (cluster_ > 1) mail_.wait(half_, parity_);
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      values[i] = cluster_ > 1 ? mail_.of[half_][i][0] : own_[i];
      for (int block = 1; block < cluster_; ++block) values[i] += mail_.of[half_][i][block];
    }
    parity_ ^= half_;  // both boxes have been used
    half_ ^= 1;
  }

 private:
  Mail& mail_;
  int cluster_;
  int half_ = 0, parity_ = 0;
  A own_[Count] = {};
};

}  // namespace gradus
