// Merges the chunks of a set that are the blocks of a cluster.
#pragma once

#include "cuda/device/cluster_mail.cuh"
#include "cuda/reduce_items.cuh"

namespace gradus {

// The parts that the warps of a cluster, whose blocks are the chunks of one output, send to its
// first block: as mail, for a barrier of the cluster would wait for the memory of the card. Blocks
// that have sent theirs need not stay.
template <class F, class A>
struct ClusterParts {
  static constexpr int kWarps = kReduceThreads / kWarp;
  static constexpr int kEach = kWarps * kMaxCluster / kWarp;  // that a thread merges in the end
  static_assert((kEach & (kEach - 1)) == 0, "they are merged pairwise");
  A of[F::kFields][kWarps * kMaxCluster];
  alignas(8) unsigned long long arrived;

  // All threads of all blocks, first of all.
  __device__ __forceinline__ void open(int chunk, int chunks) {
#if __CUDA_ARCH__ >= 900
    if (chunk == 0 && threadIdx.x == 0) {
      const SharedBarrier barrier{shared_address(&arrived)};
      barrier.open(1);
      publish_barriers();
      barrier.arrive_expecting(chunks * kWarps * static_cast<int>(sizeof(PartOf<F, A>)));
    }
#endif
    cluster_meet_first();
  }

  // All threads: `part` of the first thread of the first block is that of the output then, in the
  // order of block_reduce and reduce_forward_chunks.
  __device__ __forceinline__ void merge(PartOf<F, A>& part, int chunk, int chunks) {
    const int thread = static_cast<int>(threadIdx.x);
    part = warp_reduce(part, MergeParts<F>{});
    cluster_meet_second();  // the first block has opened its barrier
#if __CUDA_ARCH__ >= 900
    const SharedBarrier barrier{shared_address(&arrived)};
    if (thread % kWarp == 0) {
#pragma unroll
      for (int k = 0; k < F::kFields; ++k) {
        send_value(in_cluster(shared_address(&of[k][chunk * kWarps + thread / kWarp]), 0),
                   part.v[k], in_cluster(barrier.address, 0));
      }
    }
    if (chunk != 0 || thread >= kWarp) return;
    barrier.wait(0);
#endif
    PartOf<F, A> next[kEach];
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      const int i = thread * kEach + u;
      next[u] = F::template identity<A>();
      if (i >= chunks * kWarps) continue;
#pragma unroll
      for (int k = 0; k < F::kFields; ++k) next[u].v[k] = of[k][i];
    }
#pragma unroll
    for (int step = 1; step < kEach; step *= 2) {
#pragma unroll
      for (int u = 0; u < kEach; u += 2 * step) {
        next[u] = F::template merge<DeviceMath>(next[u], next[u + step]);
      }
    }
    part = warp_reduce(next[0], MergeParts<F>{});
  }
};
template <class F, class A>
__device__ __forceinline__ ClusterParts<F, A>& cluster_parts() {
  __shared__ ClusterParts<F, A> parts;
  return parts;
}

}  // namespace gradus
