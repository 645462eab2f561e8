// Hopper's copy engine: tiles of a tensor, described on the host (cuda/tensor_map.h), copied into
// shared memory by one thread, and the barriers in shared memory that count what has arrived.
#pragma once

#include <cuda.h>

#include "cuda/device/shared.cuh"

namespace gradus {

// A barrier of 8 bytes at a shared address. A phase ends when `arrivals` threads have arrived and
// all bytes that they announced are there; its parity alternates from 0.
struct SharedBarrier {
  uint32_t address;

  __device__ __forceinline__ void open(int arrivals) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(address), "r"(arrivals));
  }
  __device__ __forceinline__ void arrive() const {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(address) : "memory");
  }
  __device__ __forceinline__ void arrive_expecting(int bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :
                 : "r"(address), "r"(bytes)
                 : "memory");
  }
  __device__ __forceinline__ void wait(uint32_t parity) const {
    uint32_t done = 0;
    // A phase that never ends is a defect of the kernel: better an error than no end.
    for (int tries = 0; done == 0; ++tries) {
      if (tries == 1 << 26) __trap();
      asm volatile(
          "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
          "selp.u32 %0, 1, 0, p; }"
          : "=r"(done)
          : "r"(address), "r"(parity)
          : "memory");
    }
  }
};

// Makes freshly opened barriers known to the copy engine; a block-wide barrier must follow.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Orders this thread's earlier reads and writes of shared memory before later ones by the copy
// engine or the tensor cores.
__device__ __forceinline__ void fence_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" : : "l"(&map) : "memory");
}

// The box of `map` at (x, y), x the inner axis.
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap& map, SharedBarrier barrier,
                                         int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];"
      :
      : "r"(to), "l"(&map), "r"(barrier.address), "r"(x), "r"(y)
      : "memory");
}

// The other way: a run of pixels of 64 or 32 channels, from channel c of pixel (w, h, n) on,
// without those that `map` does not have. Copies of one thread since its last commit_stores() are a
// group.
__device__ __forceinline__ void store_pixels(const CUtensorMap& map, uint32_t from, int c, int w,
                                             int h, int n) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group "
      "[%0, {%2, %3, %4, %5}], [%1];"
      :
      : "l"(&map), "r"(from), "r"(c), "r"(w), "r"(h), "r"(n)
      : "memory");
}
__device__ __forceinline__ void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until at most Pending groups of this thread still read shared memory.
template <int Pending>
__device__ __forceinline__ void wait_stores() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

// A run of pixels of an NHWC tensor, starting at channel c of the pixel (w, h, n) of the box that
// `map` walks through, each moved by (dw, dh).
__device__ __forceinline__ void copy_pixels(uint32_t to, const CUtensorMap& map,
                                            SharedBarrier barrier, int c, int w, int h, int n,
                                            int dw, int dh) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};"
      :
      : "r"(to), "l"(&map), "r"(barrier.address), "r"(c), "r"(w), "r"(h), "r"(n),
        "h"(static_cast<uint16_t>(dw)), "h"(static_cast<uint16_t>(dh))
      : "memory");
}

}  // namespace gradus
