// Numbers that the blocks of a cluster send each other. Unlike a barrier of the cluster, waiting
// for mail does not wait for what a block has written to global memory before, which takes a
// microsecond while the memory is busy.
#pragma once

#include "cuda/device/cluster.cuh"
#include "cuda/device/shared_barrier.cuh"

namespace gradus {

// The address in block `rank` of what is at `address` in this one.
__device__ __forceinline__ uint32_t in_cluster(uint32_t address, unsigned rank) {
  uint32_t there = address;
#if __CUDA_ARCH__ >= 900
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
#endif
  return there;
}

// Writes a number to another block's memory; that block's barrier counts its bytes. Both addresses
// from in_cluster(). Only code for devices that have clusters may call it.
template <class A>
__device__ __forceinline__ void send_value(uint32_t to, A value, uint32_t barrier) {
  if constexpr (sizeof(A) == 4) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];"
                 :
                 : "r"(to), "r"(__float_as_uint(value)), "r"(barrier)
                 : "memory");
  } else {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u64 [%0], %1, [%2];"
                 :
                 : "r"(to), "l"(__double_as_longlong(value)), "r"(barrier)
                 : "memory");
  }
}

// The same for 16 bytes.
__device__ __forceinline__ void send_words(uint32_t to, const uint4& words, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
      :
      : "r"(to), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w), "r"(barrier)
      : "memory");
}

// Every block has one number per sender, `Count` times; two boxes take turns.
//
//   __shared__ ClusterMail<float, 2> mail;
//   mail.open();                        // all threads of all blocks
//   mail.send(half, values, cluster);   // at least `cluster` threads; all have the same values
//   mail.wait(half, parity);            // all threads; then mail.of[half][i][sender]
//
// A box may be sent to again once all threads of the sender's block have waited for the other box
// in between. parity alternates from 0 with each use of a box.
template <class A, int Count>
struct ClusterMail {
  A of[2][Count][kMaxCluster];
  alignas(8) unsigned long long arrived[2];  // of the boxes: bytes still under way

  __device__ __forceinline__ void open() {
    prepare();
    cluster_meet();
  }
  // The first half of it: several mails are opened at once.
  __device__ __forceinline__ void prepare() {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      barrier(0).open(1), barrier(1).open(1);
      publish_barriers();
    }
#endif
  }

  // Thread t < cluster sends to block t; `t`: of the sending threads, the thread or its lane.
  __device__ __forceinline__ void send(int half, const A (&values)[Count], int cluster) {
    send(half, values, cluster, static_cast<int>(threadIdx.x));
  }
  __device__ __forceinline__ void send(int half, const A (&values)[Count], int cluster, int t) {
#if __CUDA_ARCH__ >= 900
    if (t == 0) barrier(half).arrive_expecting(cluster * Count * static_cast<int>(sizeof(A)));
    if (t >= cluster) return;
    const uint32_t theirs = in_cluster(barrier(half).address, static_cast<unsigned>(t));
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      const uint32_t place =
          in_cluster(shared_address(&of[half][i][cluster_rank()]), static_cast<unsigned>(t));
      send_value(place, values[i], theirs);
    }
#endif
  }

  __device__ __forceinline__ void wait(int half, int parity) {
#if __CUDA_ARCH__ >= 900
    barrier(half).wait(static_cast<uint32_t>(parity));
#endif
  }

 private:
  __device__ __forceinline__ SharedBarrier barrier(int half) {
    return {shared_address(&arrived[half])};
  }
};

}  // namespace gradus
