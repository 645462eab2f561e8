// Barriers in shared memory that count what has arrived: threads, and bytes that the copy engine or
// another block of the cluster writes. Hardware from compute capability 9.0 on.
#pragma once

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
  // With `Trap` a phase that never ends, a defect of the kernel, ends in an error. Beside a trap
  // the compiler keeps no more registers than the kernel starts with, whatever grow_registers()
  // adds.
  template <bool Trap = true>
  __device__ __forceinline__ void wait(uint32_t parity) const {
    uint32_t done = 0;
    for (int tries = 0; done == 0; ++tries) {
      if constexpr (Trap) {
        if (tries == 1 << 26) __trap();
      }
      asm volatile(
          "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
          "selp.u32 %0, 1, 0, p; }"
          : "=r"(done)
          : "r"(address), "r"(parity)
          : "memory");
    }
  }
};

// Makes freshly opened barriers known to the copy engine and to the cluster; a barrier of the
// threads that use them must follow.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

}  // namespace gradus
