// The first stage of conv2d backward to the weights of f32 operands by Hopper's warpgroup-wide
// products.
#pragma once

#include "cuda/conv2d_wgmma.h"
#include "cuda/device/conv2d_wgmma_turned.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {

// The copying warp: 32 pixels of the tile's channels of dy, and of x as each tap meets them.
template <int Tiles, int Columns, bool Split>
__device__ __forceinline__ void copy_turned_steps(
    TurnedStages<TurnedTaps<Tiles, Columns, Split>>& stages, const WgmmaWgrad& p,
    const WgmmaWgradBlock& block) {
  using X = TurnedTaps<Tiles, Columns, Split>;
  int4* const table = stages.table();  // channel, dw, dh of every box of x
  const int boxes = min(X::kPositions, p.depth - block.column0) / 32, lane = threadIdx.x % 32;
  if (lane < boxes) {
    const int column = block.column0 + lane * 32, tap = column / p.channels;
    table[lane] = {column - tap * p.channels, tap % p.w.taps * p.w.step, tap / p.w.taps * p.h.step,
                   0};
  }
  __syncwarp();
  if (lane != 0) return;
  for (int step = 0; step < block.steps; ++step) {
    const int64_t m = block.begin + step * kTurnPixels;
    const Pixel first = pixel_at(p.grid, m);
    const int h = first.i * p.h.scale + p.h.shift, w = first.j * p.w.scale + p.w.shift;
    const SharedBarrier y_arrived = stages.acquire_y();
#pragma unroll
    for (int i = 0; i < Columns / 32; ++i) {
      copy_box(stages.y() + i * kTurnBoxBytes, p.dy, y_arrived, block.row0 + 32 * i,
               static_cast<int>(m));
    }
    const SharedBarrier x_arrived = stages.acquire_x(boxes * kTurnBoxBytes);
    for (int i = 0; i < boxes; ++i) {
      const int4 box = table[i];
      copy_pixels(stages.x() + i * kTurnBoxBytes, p.x, x_arrived, box.x, w, h,
                  static_cast<int>(first.n), box.y, box.z);
    }
    stages.advance();
  }
}

// The same of a tile of pixels, and the rows of x that its taps meet.
template <bool AllTaps, int Width>
__device__ __forceinline__ void copy_turned_steps(TurnedStages<TurnedHalo<AllTaps, Width>>& stages,
                                                  const WgmmaWgrad& p,
                                                  const WgmmaWgradBlock& block) {
  using X = TurnedHalo<AllTaps, Width>;
  if (threadIdx.x % 32 != 0) return;
  const int channel0 = X::first_channel(block.column0);
  for (int step = 0; step < block.steps; ++step) {
    const Pixel tile = pixel_at(p.grid, block.begin + step);
    const int n = static_cast<int>(tile.n), i0 = tile.i * X::kTileRows, j0 = tile.j * Width;
    const int h = i0 + p.h.shift + X::first_row(block.column0), w = j0 + p.w.shift;
    const SharedBarrier y_arrived = stages.acquire_y();
#pragma unroll
    for (int i = 0; i < X::kColumns / 32; ++i) {
      copy_image(stages.y() + i * kTurnBoxBytes, p.dy, y_arrived, block.row0 + 32 * i, j0, i0, n);
    }
    const SharedBarrier x_arrived = stages.acquire_x(X::kCopiedBytes);
    for (int i = 0; i < X::kBoxes; ++i) {
      for (int row = 0; row < X::kRows; ++row) {
        copy_image(stages.x() + i * X::kBoxBytes + row * X::kRowBytes, p.x, x_arrived,
                   channel0 + 32 * i, w, h + row, n);
      }
    }
    stages.advance();
  }
}

// math    partials[slice][k][r, s, c] = Σ_{pixels of the slice} dy[pixel][k] · x[pixel ⊕ (r, s)][c]
// grid    one block per slice, tile of channels k and of positions (r, s, c); positions fastest
// passes  one over the slice's pixels, 32 at a time
// bytes   fewest: x, dy once; actual, from L2: dy once per position tile, x once per channel tile
//         and tap; with its halo: once per channel tile and row of taps, or all taps
// smem    3 to 6 stages of 32 pixels of the tile's x and dy, 2 of dy turned
// needs   sm_90a; channels of x a multiple of 32 (of a block's with a halo), of dy of 4, both
//         16-byte aligned. With a halo, pixels of the tiles that dy does not have count as zeros
//         times an x that may exist: of a channel where that is not finite, no tap's sum is, either
// order   pixels in order within a slice; slices are added in order by conv2d_reduce
template <class X>
__global__ void __launch_bounds__(kTurnThreads, 1)
    conv2d_wgmma_turned(const __grid_constant__ WgmmaWgrad p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Stages = TurnedStages<X>;
  Stages stages;
  stages.open();
  wait_for_previous_kernel();
  start_next_kernel();
  const WgmmaWgradBlock block(p, X::kBlockColumns, X::kColumns, X::kStep);
  const int group = threadIdx.x / 128, warp = threadIdx.x % 128 / 32;
  if (group == Stages::kGroups) {
    shrink_registers<40>();
    if (warp == 0) {
      copy_turned_steps(stages, p, block);
    } else {
      for (int step = 0; step < block.steps; ++step) stages.turn(warp - 1);
    }
  } else {
    grow_registers<232>();
    float c[X::kTiles][X::kColumns / 2];
    if constexpr (X::kSplit) {
      stages.multiply_split(c, block.steps);
    } else {
      stages.multiply(c, block.steps);
    }
    const int lane = threadIdx.x % 32, row = block.row0 + 2 * (lane % 4);
    float* const out = p.partials + block.slice * p.rows * int64_t{p.depth};
#pragma unroll
    for (int tile = 0; tile < X::kTiles; ++tile) {
      const int first = X::position(block.column0, p.channels, group, tile) + warp * 16 + lane / 4;
#pragma unroll
      for (int i = 0; i < X::kColumns / 2; ++i) {
        const int k = row + i / 4 * 8 + i % 2, position = first + i % 4 / 2 * 8;
        if (k < p.rows && position < p.depth) out[int64_t{k} * p.depth + position] = c[tile][i];
      }
    }
  }
#endif
}

}  // namespace gradus
