// Arguments of the convolutions over halo tiles (conv2d_halo.cuh). Host and device.
#pragma once

#include <cstdint>

#include "cuda/device/strided_plan.h"

namespace gradus {

// One axis: output i of a phase reads input i * scale + shift + offset[t] at tap index[t]. Forward
// has one phase. The gradient of the input has as many as the stride: outputs first, first + step,
// ... meet the same taps, so that none of them multiplies the zeros between strides.
struct HaloAxis {
  static constexpr int kMaxTaps = 8;
  int taps = 0;
  int shift = 0;
  int first = 0;
  int outputs = 0;
  int16_t offset[kMaxTaps] = {};  // at least 0
  int16_t index[kMaxTaps] = {};
};

// Output pixels that a block has at a time: whole images, or rows of one, or a part of them.
struct HaloTile {
  int images = 1, rows = 1, columns = 1;
  int halo_rows = 1, halo_columns = 1;  // of the input that they read

  int64_t pixels() const { return int64_t{images} * rows * columns; }
  int64_t halo_pixels() const { return int64_t{images} * halo_rows * halo_columns; }
};

// out[m][o] = bias[o] + Σ_{tap, i} in[m ⊕ tap][i] · weights[o][i, tap]
struct HaloGather {
  static constexpr int kMaxPhases = 2;
  const void* in = nullptr;       // [images, in_h, in_w, groups, channels]
  const void* weights = nullptr;  // at group · weight_group + o · weight_out + i · weight_in + tap
  const void* bias = nullptr;     // [groups, columns], acc; or null
  void* out = nullptr;            // [images, out_h, out_w, groups, columns]
  int images = 0, in_h = 0, in_w = 0, out_h = 0, out_w = 0;
  int groups = 1, channels = 0, columns = 0;
  int weight_group = 0, weight_out = 0, weight_in = 0;
  int weight_row = 1;  // taps of a row of the filter
  int scale_h = 1, scale_w = 1, step_h = 1, step_w = 1;
  int phases_h = 1, phases_w = 1;
  HaloAxis h[kMaxPhases], w[kMaxPhases];
  HaloTile tile;
  FastDivisor tile_area, tile_width;  // rows * columns, columns
  FastDivisor row_tiles, column_tiles;
  int tiles = 1;
  int channel_tiles = 1;
  int stages = 1;           // tiles of input in shared memory
  bool vector_out = false;  // pixels of `out` may be written 16 bytes at a time
};

// partials[slice][k][r, s, c] = Σ_{pixels of the slice} dy[pixel][k] · x[pixel ⊕ (r, s)][c]
struct HaloWgrad {
  const void* x = nullptr;     // [images, in_h, in_w, groups, channels]
  const void* dy = nullptr;    // [images, out_h, out_w, groups, rows]
  void* partials = nullptr;    // [slices, groups, rows, taps_h, taps_w, padded], f32
  float* bias_sums = nullptr;  // [slices, groups, rows]
  int images = 0, in_h = 0, in_w = 0, out_h = 0, out_w = 0;
  int groups = 1, channels = 0, rows = 0;
  int padded = 0;  // channels and zeros: a multiple of 8 (TF32) or 16
  int scale_h = 1, scale_w = 1, shift_h = 0, shift_w = 0, step_h = 1, step_w = 1;
  int taps_h = 1, taps_w = 1;
  HaloTile tile;  // whole rows of dy
  FastDivisor tile_area, tile_width;
  int row_tiles = 1, tiles = 1, tiles_per_slice = 1;
  int row_units = 1, column_units = 1, splits = 1;  // of the warps
};

// Where a pixel of a tile goes in `out`, from the first one, and its column; offset -1: nowhere.
struct HaloTarget {
  int offset, column;
};

}  // namespace gradus
