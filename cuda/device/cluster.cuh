// Thread block clusters: blocks that run together and read each other's shared memory. Hardware
// from compute capability 9.0 on; a launcher must not launch a cluster elsewhere.
#pragma once

#include <cooperative_groups.h>

namespace gradus {

inline constexpr int kMaxCluster = 8;  // blocks, on any hardware that has clusters

// Which block of the cluster this is.
__device__ __forceinline__ unsigned cluster_rank() {
#if __CUDA_ARCH__ >= 900
  return cooperative_groups::this_cluster().block_rank();
#else
  return 0;
#endif
}

// All threads of all blocks; what was written to shared memory before is seen after.
__device__ __forceinline__ void cluster_sync() {
#if __CUDA_ARCH__ >= 900
  cooperative_groups::this_cluster().sync();
#endif
}

// All threads of all blocks; nothing but barriers in shared memory, opened behind a fence of their
// own, is seen after. It waits for no memory. Also in two halves.
__device__ __forceinline__ void cluster_meet_first() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_meet_second() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_meet() {
  cluster_meet_first();
  cluster_meet_second();
}

// cluster_sync() in two halves: no block passes the second before all have passed the first.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// Where `shared`, a place in this block's shared memory, is in that of block `rank`.
template <class T>
__device__ __forceinline__ T* in_block(T* shared, unsigned rank) {
#if __CUDA_ARCH__ >= 900
  return cooperative_groups::this_cluster().map_shared_rank(shared, rank);
#else
  return shared;
#endif
}

}  // namespace gradus
