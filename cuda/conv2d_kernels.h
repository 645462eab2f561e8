// The kernels that conv2d's launchers in conv2d_gather.cu and conv2d_wgrad.cu are put together
// from. Host-only.
#pragma once

#include "core/ops/conv2d.h"
#include "cuda/context.h"
#include "cuda/conv2d_plan.h"
#include "cuda/device/conv2d_direct.cuh"
#include "cuda/device/conv2d_gather.cuh"
#include "cuda/device/conv2d_wgrad.cuh"

namespace gradus {

// Implicit GEMM, conv2d_gather_*.cu. T: float (TF32), Half, BFloat16 on tensor cores; float, double
// in plain multiply-adds.
template <class T>
void gather_gemm_tensor(Cuda&, const GatherGemm&, ConvTile, bool divided);
template <class T>
void gather_gemm_plain(Cuda&, const GatherGemm&, ConvTile, bool divided);

// First stage of the weight gradient, conv2d_wgrad_*.cu.
template <class T>
void wgrad_gemm_tensor(Cuda&, const WgradGemm&, const ConvWgradPlan&);
template <class T>
void wgrad_gemm_plain(Cuda&, const WgradGemm&, const ConvWgradPlan&);

// Channels of one group that a thread of the direct kernels takes at once.
constexpr int direct_pack(DType dtype) { return dtype == DType::f64 ? 2 : 4; }

// Few input channels per group, conv2d_direct.cu; fills in what `lanes` decides.
void direct_gather(Cuda&, DType, DirectGather, const ConvDirectPlan& lanes, bool divided);
// The partial weight gradients; fills in likewise.
void direct_wgrad(Cuda&, DType, DirectWgrad, const ConvDirectPlan& lanes, const Chunks&);

// Copies [n, channels, pixels] between layouts, conv2d_layout.cu.
struct PixelLayout {
  int64_t image = 0, channel = 0, pixel = 0;  // strides in elements
};
struct LayoutCopy {
  const void* from = nullptr;
  void* to = nullptr;
  PixelLayout from_strides, to_strides;
  int64_t images = 0, pixels = 0;
  int groups = 1;
  int channels = 0;     // per group, in `from`
  int to_channels = 0;  // per group, in `to`; those beyond `channels` become 0
};
void copy_layout(Cuda&, DType, const LayoutCopy&);

// Weights [groups, out, in, taps] (forward) or [groups, in, out, taps] (backward) to
// [groups, out, taps, padded in], conv2d_layout.cu.
struct WeightPack {
  const void* from = nullptr;
  void* to = nullptr;
  int groups = 1, out = 0, in = 0, padded_in = 0, taps = 1;
  bool backward = false;
  bool round_tf32 = false;
};
void pack_weights(Cuda&, DType, const WeightPack&);

// out[row][c][tap] = Σ_slice partials[slice][row][tap][padded c], in order, conv2d_reduce.cu. No
// slices: zeros.
struct SliceSum {
  const void* partials = nullptr;  // acc_dtype of `out`, or `out`'s own
  void* out = nullptr;
  int64_t slices = 0, rows = 0;
  int channels = 1, padded_channels = 1, taps = 1;
  // The first stage leaves no room on a multiprocessor, so that the next kernel's blocks, which may
  // then start as well, spread evenly.
  bool first_fills = false;
};
void sum_slices(Cuda&, DType out, const SliceSum&);

}  // namespace gradus
