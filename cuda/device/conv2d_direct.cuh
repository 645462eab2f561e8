// Arguments of the direct convolution kernels: any layout, few input channels per group.
#pragma once

#include "cuda/device/conv2d_window.cuh"
#include "cuda/device/image_strides.cuh"

namespace gradus {

// out[m][o] = bias[o] + Σ_{i, tap} in[m ⊕ tap][i] · weights[o, i, tap]
struct DirectGather {
  Gather gather;
  const void* in = nullptr;
  const void* weights = nullptr;  // at group · weight_group + o · weight_out + i · weight_in + tap
  const void* bias = nullptr;     // [out_channels], acc; or null
  void* out = nullptr;
  ImageStrides in_strides, out_strides;
  int64_t weight_group = 0, weight_out = 0, weight_in = 0;
  int in_per_group = 1, out_per_group = 1, out_channels = 1;
  int channel_lanes = 1, channel_tiles = 1;
  bool vector_out = false;  // a thread's channels may be written together
};

// partials[slice][k][i, r, s] = Σ_{pixels of the slice} dy[m][k] · x[m ⊕ (r, s)][i]
struct DirectWgrad {
  Gather gather;
  const void* x = nullptr;
  const void* dy = nullptr;
  void* partials = nullptr;  // [slices, k, columns], acc
  ImageStrides x_strides, dy_strides;
  int c_per_group = 1, k_per_group = 1, k = 1;
  int columns = 1;  // c_per_group · taps
  int channel_lanes = 1, channel_tiles = 1;
  int column_tiles = 1;
  int64_t slice_pixels = 0;
  bool vector_dy = false;  // a thread's channels may be read together
};

}  // namespace gradus
