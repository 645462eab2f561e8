// The weight gradient's sums of two slices, added before they leave the chip.
#pragma once

#include "cuda/device/cluster.cuh"
#include "cuda/device/shared.cuh"

namespace gradus {

// Adds the sums of the two blocks of a cluster, of which `Threads` threads each hold Vectors x 4 in
// the same places: sums(j)[i], j known when compiled. Calls store(j, sum) for this block's half of
// the vectors. `mail`: a place of Vectors / 2 · Threads · 16 bytes, the same in both blocks, that
// nobody reads any more once all those threads are here.
// The blocks' other threads call attend_pair() meanwhile.
template <int Vectors, int Threads, class Sums, class Store>
__device__ __forceinline__ void add_pair(uint32_t mail, const Sums& sums, const Store& store) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr int kHalf = Vectors / 2;
  const unsigned rank = cluster_rank();
  const uint32_t own = mail + threadIdx.x * 16;
  uint32_t others;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(others) : "r"(own), "r"(rank ^ 1));
  cluster_arrive();
  cluster_wait();
#pragma unroll
  for (int j = 0; j < kHalf; ++j) {
    const float *low = sums(j), *high = sums(j + kHalf);
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(others + j * Threads * 16), "f"(rank == 0 ? high[0] : low[0]),
                   "f"(rank == 0 ? high[1] : low[1]), "f"(rank == 0 ? high[2] : low[2]),
                   "f"(rank == 0 ? high[3] : low[3])
                 : "memory");
  }
  cluster_arrive();
  cluster_wait();
#pragma unroll
  for (int j = 0; j < kHalf; ++j) {
    float sum[4];
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
                 : "r"(own + j * Threads * 16));
    const float *low = sums(j), *high = sums(j + kHalf);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] += rank == 0 ? low[i] : high[i];
    store(static_cast<int>(rank) * kHalf + j, sum);
  }
#endif
}

__device__ __forceinline__ void attend_pair() {
  __syncwarp();
  cluster_arrive();
  cluster_wait();
  cluster_arrive();
  cluster_wait();
}

}  // namespace gradus
