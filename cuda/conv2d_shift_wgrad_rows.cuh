// conv2d backward to the weights of 16-bit operands, 64 channels each, and 3 x 3 windows on Hopper:
// a block has the taps of one row, so that its partial sums are a third of all weights.
#pragma once

#include "cuda/conv2d_shift_wgrad.cuh"
#include "cuda/device/slice_sum.cuh"

namespace gradus {

inline constexpr int kShiftRowsWeights = 64 * 9 * 64;
inline constexpr int kShiftRowsLanes = 16;  // of the second stage: threads that share slices

// math    partials[slice][r][vector][thread] = four of Σ_{pixels of the slice} dy[pixel][k] ·
//         x[pixel ⊕ (r, s)][c], as the multiplying threads hold them
//         bias_sums[slice][warp][k] = Σ dy[pixel][k]
// grid    a block per slice of the steps and row r of the taps, neighbours of one slice
// passes  one over the slice's rows
// bytes   fewest: x, dy once; actual, from L2: three times
// smem    4 to 8 stages of a tile's rows of dy, and of as many rows of x
// needs   sm_90a; 64 channels of x and of dy, both 16-byte aligned; stride and dilation 1. Pixels
//         of the tiles that dy does not have count as zeros times an x that may exist: of a channel
//         where that is not finite, no tap's sum is, either
// order   pixels in order within a slice; of the bias every twelfth pixel in order, four of those,
//         then warps and slices
template <class T>
__global__ void __launch_bounds__(ShiftWgradStages<1>::kThreads, 1)
    conv2d_shift_wgrad_rows(const __grid_constant__ ShiftWgrad p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const int row = blockIdx.x % 3, slice = blockIdx.x / 3;
  const bool bias = p.bias_sums != nullptr && row == 0;
  ShiftWgradStages<1> stages(p, row);
  stages.open(bias);
  wait_for_previous_kernel();
  start_next_kernel();
  const int begin = min(slice * p.slice_steps, p.steps);
  const int end = min(begin + p.slice_steps, p.steps);
  if (threadIdx.x >= 128) {
    const int warp = threadIdx.x % 128 / 32;
    if (threadIdx.x == 128) stages.copy(begin, end, 0, 0);
    if (bias && warp > 0) {
      float* const out = p.bias_sums + (slice * kShiftWgradAdders + warp - 1) * 64;
      stages.add_bias<T>(warp - 1, end - begin, out, 64);
    }
    return;
  }
  float c[96];
  stages.multiply<T>(c, end - begin);
  float* const out = p.partials + static_cast<int64_t>(slice) * kShiftRowsWeights +
                     row * (kShiftRowsWeights / 3) + threadIdx.x * 4;
#pragma unroll
  for (int j = 0; j < kShiftWgradVectors; ++j) {
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(out + j * 512), "f"(c[4 * j]), "f"(c[4 * j + 1]), "f"(c[4 * j + 2]),
                   "f"(c[4 * j + 3])
                 : "memory");
  }
#endif
}

// math    dw[k][c][r, s] = Σ_slice partials[slice][...]
// grid    a block per 32 vectors of partial sums, a lane of each warp for one
// bytes   the partials once
// smem    the warps' sums
// order   a warp adds every 16th slice in order, then the warps' sums are added in order
template <class T>
__global__ void __launch_bounds__(kShiftRowsLanes * 32)
    conv2d_shift_wgrad_rows_sum(const float* partials, T* dw, int slices) {
  __shared__ alignas(16) float sums[kShiftRowsLanes][128];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float* const from = partials + blockIdx.x * 128 + lane * 4;
  wait_for_previous_kernel();
  start_next_kernel();
  const auto sum = add_slices<3, 4>(from, kShiftRowsWeights, slices, warp, kShiftRowsLanes);
  store_pack(&sums[warp][lane * 4], sum);
  __syncthreads();
  if (threadIdx.x >= 128) return;
  float all = sums[0][threadIdx.x];
#pragma unroll
  for (int i = 1; i < kShiftRowsLanes; ++i) all += sums[i][threadIdx.x];
  // As in wgmma.cuh: element e of thread t of a warpgroup's quarter w, of vector j of row r.
  const int e = threadIdx.x % 4, t = threadIdx.x / 4, w = blockIdx.x % 4;
  const int j = blockIdx.x / 4 % kShiftWgradVectors, r = blockIdx.x / 4 / kShiftWgradVectors;
  const int k = w * 16 + t / 4 + e / 2 * 8, c = j % 8 * 8 + t % 4 * 2 + e % 2;
  dw[(k * 64 + c) * 9 + r * 3 + j / 8] = static_cast<T>(all);
}

}  // namespace gradus
