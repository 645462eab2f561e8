// The steps that conv2d's launches for Hopper are put together from. Host-only.
#pragma once

#include "cuda/context.h"
#include "cuda/conv2d_shift_wgrad_plan.h"
#include "cuda/conv2d_wgmma.h"

namespace gradus {

// T: float, Half, BFloat16; f32 with `split` in two parts, else rounded to TF32.
template <class T>
void wgmma_gather(Cuda&, const WgmmaGather&, WgmmaTile, bool split);
void wgmma_wgrad(Cuda&, DType, const WgmmaWgrad&, const WgmmaWgradPlan&);
void wgmma_wgrad_halo(Cuda&, const WgmmaWgrad&, const ShiftWgradPlan&);

// Weights [out, in, taps] (forward) or [in, out, taps] (backward) to one matrix [out, taps, in] per
// part, or to two of them, the big and the small parts.
struct WgmmaTaps {
  int h_taps = 0, h_first = 0, h_step = 0, w_taps = 0, w_first = 0, w_step = 0;
  int64_t offset = 0;  // of the part's matrix, elements
};
struct WgmmaWeights {
  const void* from = nullptr;
  void* to = nullptr;
  int out = 0, in = 0, kernel_h = 1, kernel_w = 1;
  bool backward = false, split = false;
  int part_count = 1;
  WgmmaTaps parts[kMaxWgmmaParts];
};
void pack_wgmma_weights(Cuda&, DType, const WgmmaWeights&);

// to[0, count) = big and to[count, 2·count) = small parts; both 16-byte aligned, count a multiple
// of 4.
void split_f32(Cuda&, const float* from, float* to, int64_t count);

}  // namespace gradus
