// Hopper's copy engine: tiles of a tensor, described on the host (cuda/tensor_map.h), copied into
// shared memory by one thread.
#pragma once

#include <cuda.h>

#include "cuda/device/shared_barrier.cuh"

namespace gradus {

// Orders this thread's earlier reads and writes of shared memory before later ones by the copy
// engine or the tensor cores.
__device__ __forceinline__ void fence_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
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

// The box of an image [n, h, w, channels] that starts at channel c of pixel (w, h, n).
__device__ __forceinline__ void copy_image(uint32_t to, const CUtensorMap& map,
                                           SharedBarrier barrier, int c, int w, int h, int n) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];"
      :
      : "r"(to), "l"(&map), "r"(barrier.address), "r"(c), "r"(w), "r"(h), "r"(n)
      : "memory");
}

// Asks the second-level cache for that box. That may be before wait_for_previous_kernel(), too:
// what the kernel before still writes, it writes there.
__device__ __forceinline__ void prefetch_image(const CUtensorMap& map, int c, int w, int h, int n) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];"
               :
               : "l"(&map), "r"(c), "r"(w), "r"(h), "r"(n)
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
// Likewise the box of an image [n, h, w, channels] that starts at channel c of pixel (w, h, n).
__device__ __forceinline__ void store_image(const CUtensorMap& map, uint32_t from, int c, int w,
                                            int h, int n) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
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
