// The steps that conv2d's launches for Hopper are put together from. Host-only.
#pragma once

#include "cuda/context.h"
#include "cuda/conv2d_wgmma.h"
#include "cuda/conv2d_wgmma_plan.h"

namespace gradus {

// T: float, Half, BFloat16; f32 with `split` in two parts, else rounded to TF32.
template <class T>
void wgmma_gather(Cuda&, const WgmmaGather&, WgmmaTile, bool split);
template <class T>
void wgmma_wgrad(Cuda&, const WgmmaWgrad&, const WgmmaWgradPlan&, bool split);

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

// to[plane][c][j] = from[n][h][w][c], or its big and then all the small parts: position j = (i, j',
// n) of `grid` in plane (a, b) is h = i·stride_h + a - padding_h, w = j'·stride_w + b - padding_w,
// and 0 where that or the image is outside.
struct TurnedImage {
  const float* from = nullptr;
  float* to = nullptr;
  PixelGrid grid;
  int64_t images = 0;
  int channels = 0, h = 0, w = 0;
  int stride_h = 1, stride_w = 1, padding_h = 0, padding_w = 0;
  bool split = false;
};
void turn_image(Cuda&, const TurnedImage&);

}  // namespace gradus
