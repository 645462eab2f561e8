// What the kernels of several norms share.
#pragma once

#include <cstdint>

#include "cuda/device/shared.cuh"

namespace gradus {

// wait_copies<pending>() for 0 to 3: constants once a loop is unrolled, or the same for all
// threads.
__device__ __forceinline__ void wait_copies_but(int pending) {
  if (pending == 3) wait_copies<3>();
  if (pending == 2) wait_copies<2>();
  if (pending == 1) wait_copies<1>();
  if (pending == 0) wait_copies<0>();
}

// from[i·stride] for i = first, first + step, ... below `end`, combined in turn with `zero`. Loads
// go out in batches, the last of which is no slower than the others.
template <class T, class Op>
__device__ __forceinline__ T reduce_strided(const T* from, int64_t first, int64_t end, int64_t step,
                                            int64_t stride, Op op, T zero) {
  constexpr int kBatch = 8;
  T total = zero;
  for (int64_t i = first; i < end; i += kBatch * step) {
    T values[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k)
      values[k] = i + k * step < end ? from[(i + k * step) * stride] : zero;
#pragma unroll
    for (int k = 0; k < kBatch; ++k) total = op(total, values[k]);
  }
  return total;
}

}  // namespace gradus
