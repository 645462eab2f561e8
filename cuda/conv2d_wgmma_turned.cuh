// The first stage of conv2d backward to the weights of f32 operands by Hopper's warpgroup-wide
// products.
#pragma once

#include "cuda/conv2d_wgmma.h"
#include "cuda/device/conv2d_wgmma_turned.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {

// The copying warp: 32 pixels of the tile's channels of dy, and of x as each tap meets them.
template <class Stages>
__device__ __forceinline__ void copy_turned_steps(Stages& stages, const WgmmaWgrad& p,
                                                  const WgmmaWgradBlock& block) {
  int4* const table = stages.table();  // channel, dw, dh of every box of x
  const int boxes = min(Stages::kPositions, p.depth - block.column0) / 32, lane = threadIdx.x % 32;
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
    for (int i = 0; i < Stages::kBoxesY; ++i) {
      copy_box(stages.y() + i * kTurnBoxBytes, p.dy, y_arrived, block.row0 + 32 * i,
               static_cast<int>(m));
    }
    const SharedBarrier x_arrived = stages.acquire_x(boxes);
    for (int i = 0; i < boxes; ++i) {
      const int4 box = table[i];
      copy_pixels(stages.x() + i * kTurnBoxBytes, p.x, x_arrived, box.x, w, h,
                  static_cast<int>(first.n), box.y, box.z);
    }
    stages.advance();
  }
}

// math    partials[slice][k][r, s, c] = Σ_{pixels of the slice} dy[pixel][k] · x[pixel ⊕ (r, s)][c]
// grid    one block per slice, tile of Columns channels k and tile of positions (r, s, c);
//         positions fastest
// passes  one over the slice's pixels, 32 at a time
// bytes   fewest: x, dy once; actual: x once per tap and channel tile, dy once per position tile,
//         from L2
// smem    3 or 4 stages of 32 pixels of the tile's x and dy, 2 of dy turned
// needs   sm_90a; channels of x a multiple of 32, of dy of 4, both 16-byte aligned
// order   pixels in order within a slice; slices are added in order by conv2d_reduce
template <int Tiles, int Columns, bool Split>
__global__ void __launch_bounds__(kTurnThreads, 1)
    conv2d_wgmma_turned(const __grid_constant__ WgmmaWgrad p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Stages = TurnedStages<Tiles, Columns, Split>;
  Stages stages;
  stages.open();
  start_next_kernel();
  const WgmmaWgradBlock block(p, Stages::kPositions, Columns, kTurnPixels);
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
    float c[Tiles][Columns / 2];
    if constexpr (Split) {
      stages.multiply_split(c, block.steps);
    } else {
      stages.multiply(c, block.steps);
    }
    const int lane = threadIdx.x % 32;
    const int first = block.column0 + group * (Tiles * 64) + warp * 16 + lane / 4;
    const int row = block.row0 + 2 * (lane % 4);
    float* const out = p.partials + block.slice * p.rows * int64_t{p.depth};
#pragma unroll
    for (int j = 0; j < Columns / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4 * Tiles; ++i) {
        const int k = row + 8 * j + i % 2, position = first + i / 4 * 64 + i % 4 / 2 * 8;
        if (k < p.rows && position < p.depth) {
          out[int64_t{k} * p.depth + position] = c[i / 4][4 * j + i % 4];
        }
      }
    }
  }
#endif
}

}  // namespace gradus
