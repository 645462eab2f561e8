// The first stage of conv2d backward to the weights of 16-bit operands by Hopper's warpgroup-wide
// products.
#pragma once

#include "cuda/conv2d_wgmma.h"
#include "cuda/device/conv2d_wgmma.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {

// Where 64 columns of a tile are: one tap of 64 channels.
struct WgradBox {
  int channel, r, s;
  __device__ __forceinline__ WgradBox(const WgmmaWgrad& p, int column) {
    const int tap = column / p.channels;
    channel = column - tap * p.channels;
    r = tap / p.w.taps * p.h.step;
    s = tap % p.w.taps * p.w.step;
  }
};

// Copies 64 pixels of every channel of the tile, pixel by pixel.
template <class Stages, int Rows, int Columns>
__device__ __forceinline__ void copy_pixel_steps(Stages& stages, const WgmmaWgrad& p,
                                                 const WgmmaWgradBlock& block) {
  constexpr int kBoxes = Columns / 64;
  const int boxes = min(Columns, p.depth - block.column0) / 64;
  int channel[kBoxes], dh[kBoxes], dw[kBoxes];
#pragma unroll
  for (int i = 0; i < kBoxes; ++i) {
    const WgradBox box(p, block.column0 + 64 * i);
    channel[i] = box.channel, dh[i] = box.r, dw[i] = box.s;
  }
  for (int step = 0; step < block.steps; ++step) {
    const int64_t m = block.begin + step * 64;
    const Pixel first = pixel_at(p.grid, m);
    const int h = first.i * p.h.scale + p.h.shift, w = first.j * p.w.scale + p.w.shift;
    const SharedBarrier arrived = stages.acquire((Rows / 64 + boxes) * Stages::kBoxBytes);
#pragma unroll
    for (int i = 0; i < Rows / 64; ++i) {
      copy_box(stages.a() + i * Stages::kBoxBytes, p.dy, arrived, block.row0 + 64 * i,
               static_cast<int>(m));
    }
#pragma unroll
    for (int i = 0; i < kBoxes; ++i) {
      if (i < boxes) {
        copy_pixels(stages.b() + i * Stages::kBoxBytes, p.x, arrived, channel[i], w, h,
                    static_cast<int>(first.n), dw[i], dh[i]);
      }
    }
    stages.advance();
  }
}

// math    partials[slice][k][r, s, c] = Σ_{pixels of the slice} dy[pixel][k] · x[pixel ⊕ (r, s)][c]
// grid    one block per slice, tile of Rows channels k and tile of Columns positions (r, s, c);
//         positions fastest
// passes  one over the slice's pixels, 64 at a time, copied ahead by one thread
// bytes   fewest: x, dy once; actual: x once per tap and channel tile, dy once per position tile,
//         from L2
// smem    4 to 7 stages of (Rows + Columns) x 128 bytes
// needs   sm_90a; channels of x a multiple of 64, of dy of 8, both 16-byte aligned
// order   pixels in order within a slice; slices are added in order by conv2d_reduce
template <class T, int Rows, int Columns>
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    conv2d_wgmma_wgrad(const __grid_constant__ WgmmaWgrad p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Stages = WgmmaStages<T, Rows, Columns, false, false>;
  Stages stages;
  stages.open();
  wait_for_previous_kernel();
  start_next_kernel();
  const WgmmaWgradBlock block(p, Columns, Rows, 64);
  if (threadIdx.x >= kWgmmaConsumers) {
    shrink_registers<40>();
    if (threadIdx.x == kWgmmaConsumers) copy_pixel_steps<Stages, Rows, Columns>(stages, p, block);
  } else {
    grow_registers<232>();
    constexpr int kColumns = Stages::kGroupColumns;
    float c[kColumns / 2];
    stages.template multiply<Operand::upright>(c, block.steps);
    const int t = threadIdx.x % 128, group = Stages::group();
    const int row =
        block.row0 + (Rows == 64 ? 0 : group * 64) + t / 32 * 16 + t % 32 / 4;  // and row + 8
    const int first = block.column0 + (Rows == 64 ? group * kColumns : 0) + 2 * (t % 4);
    float* const out = p.partials + (block.slice * p.rows + row) * p.depth;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      const int column = first + 8 * j;
      if (column >= p.depth) continue;
      if (row < p.rows) store_pack(out + column, Pack<float, 2>{c[4 * j], c[4 * j + 1]});
      if (row + 8 < p.rows) {
        store_pack(out + int64_t{8} * p.depth + column, Pack<float, 2>{c[4 * j + 2], c[4 * j + 3]});
      }
    }
  }
#endif
}

}  // namespace gradus
