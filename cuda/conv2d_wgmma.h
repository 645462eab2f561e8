// What conv2d's kernels for Hopper are given.
#pragma once

#include <cuda.h>

#include "cuda/device/conv2d_window.cuh"

namespace gradus {

// One axis of a window as the copy engine walks it: output pixel i and tap t read the input at
// i·scale + shift + t·step, step >= 0.
struct WgmmaAxis {
  int taps = 1, scale = 1, shift = 0, step = 1;
};

// Output pixels that read the same taps: all of them, or with a stride backward to the input those
// of one remainder along each axis.
struct WgmmaPart {
  CUtensorMap in;       // [n, h, w, channels], runs of a tile's pixels
  CUtensorMap weights;  // [columns, depth], depth = (r, s, channel), boxes of a tile's rows
  CUtensorMap out;      // [n, h, w, columns] of these pixels, runs of a box
  PixelGrid grid;
  WgmmaAxis h, w;
  int64_t first_tile = 0;
};
inline constexpr int kMaxWgmmaParts = 4;

struct WgmmaGather {
  WgmmaPart parts[kMaxWgmmaParts];
  int part_count = 1;
  const float* bias = nullptr;  // [columns], or null
  int channels = 0, columns = 0;
  int images = 0;     // Split: `in` has as many big ones, then small ones; `weights` likewise rows
  int row_tiles = 1;  // of the columns
  int64_t tiles = 0;
};

// 64 pixels of 16-bit operands at a time, 32 of f32 ones: runs of them, or, where x is copied with
// its halo, tiles, which are then what the grid and the slices are of.
struct WgmmaWgrad {
  CUtensorMap x;              // [n, h, w, channels], runs x 128 bytes; or rows of a tile and halo
  CUtensorMap dy;             // [pixels, rows], boxes likewise; or [n, h, w, rows], tiles
  float* partials = nullptr;  // [slices, rows, depth]
  PixelGrid grid;             // of dy
  WgmmaAxis h, w;
  int channels = 0, rows = 0, depth = 0;
  int row_tiles = 1, column_tiles = 1;
  int64_t slice_size = 0;
};

// What a block of the weight gradient's kernels has: a slice of the pixels and a tile, of which
// those of positions are next to each other.
struct WgmmaWgradBlock {
  int64_t slice, begin;
  int row0, column0, steps;

  __device__ __forceinline__ WgmmaWgradBlock(const WgmmaWgrad& p, int tile_columns, int tile_rows,
                                             int step) {
    const int64_t rest = blockIdx.x / p.column_tiles;
    column0 = static_cast<int>(blockIdx.x % p.column_tiles) * tile_columns;
    row0 = static_cast<int>(rest % p.row_tiles) * tile_rows;
    slice = rest / p.row_tiles;
    begin = slice * p.slice_size;
    const int64_t pixels = min(p.slice_size, p.grid.pixels - begin);
    steps = static_cast<int>((pixels + step - 1) / step);
  }
};

}  // namespace gradus
