// One thread per element of a few strided tensors of one shape.
//
//   struct Scale {
//     const float* x;
//     float* y;
//     __device__ void operator()(const StridedOffsets<2>& at) const { y[at.at[0]] = 2 *
//     x[at.at[1]]; }
//   };
//   for_each_element<<<blocks, kElementThreads, 0, stream>>>(StridedPlan<2>(...), Scale{x, y});
#pragma once

#include "cuda/device/strided_plan.h"

namespace gradus {

inline constexpr int kElementThreads = 256;

// grid: 1-D, any number of blocks (each thread steps over the whole grid)
// order: neighbouring threads take neighbouring elements of the first tensor
template <int N, class F>
__global__ void __launch_bounds__(kElementThreads)
    for_each_element(const __grid_constant__ StridedPlan<N> plan, const F f) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < plan.count;
       i += step) {
    f(plan.offsets(i));
  }
}

}  // namespace gradus
