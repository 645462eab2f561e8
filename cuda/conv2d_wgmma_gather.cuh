// conv2d forward and backward to the input by Hopper's warpgroup-wide products.
#pragma once

#include "cuda/conv2d_wgmma.h"
#include "cuda/device/conv2d_stage.cuh"
#include "cuda/device/conv2d_wgmma.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {

// One warpgroup's sums, 64 channels from channel0 of its pixels from m0 on, to global memory:
// turned into boxes of 8 KB in shared memory, two of which take turns, and copied from there.
template <class T, int GroupColumns>
__device__ __forceinline__ void store_sums(const WgmmaPart& part, const float* bias, int columns,
                                           const float (&c)[GroupColumns / 2], uint32_t boxes,
                                           int64_t m0, int channel0) {
  constexpr int kRun = sizeof(T) == 2 ? 64 : 32;  // pixels of 64 channels in a box
  const int t = threadIdx.x % 128, row = t / 32 * 16 + t % 32 / 4;  // and row + 8
  const auto bias_of = [&](int i) {
    return bias != nullptr && channel0 + i < columns ? bias[channel0 + i] : 0.0f;
  };
  const float bias0 = bias_of(row), bias1 = bias_of(row + 8);
#pragma unroll
  for (int run = 0; run < GroupColumns / kRun; ++run) {
    const uint32_t box = boxes + run % 2 * 8192;
    if (t == 0) wait_stores<1>();
    sync_group();
    if constexpr (sizeof(T) == 2) {
      stage_halves<T, kRun / 8>(box, c + run * kRun / 2, bias0, bias1);
    } else {
      stage_floats<kRun / 8>(box, c + run * kRun / 2, bias0, bias1);
    }
    fence_async();
    sync_group();
    const int64_t m = m0 + run * kRun;
    if (t == 0 && m < part.grid.pixels) {
      const Pixel first = pixel_at(part.grid, m);
      for (int i = 0; i < 64 * static_cast<int>(sizeof(T)) / 128; ++i) {
        const int channel = channel0 + i * 32;
        if (channel < columns) {
          store_pixels(part.out, box + i * 4096, channel, first.j, first.i,
                       static_cast<int>(first.n));
        }
      }
    }
    if (t == 0) commit_stores();
  }
}

// math    out[m][k] = bias[k] + Σ_{r,s,c} in[m ⊕ (r, s)][c] · weights[k][r, s, c]
// grid    one block per multiprocessor, each taking every gridDim.x-th tile of Rows channels x
//         Columns pixels; channel tiles fastest
// passes  one; a thread has stages copied ahead while two warpgroups multiply
// bytes   fewest: in, weights and out once; actual: in once per tap and channel tile, from L2
// smem    the stages, 2 to 6 of (Rows + Columns) x 128 bytes, and 32 KB to turn the results in
// needs   sm_90a; channels a multiple of 128 bytes, columns of 16 bytes, all 16-byte aligned
// order   each output is summed in the order (slice of c, r, s, c), by one warpgroup
template <class T, int Rows, int Columns, bool Split>
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    conv2d_wgmma_gather(const __grid_constant__ WgmmaGather p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Stages = WgmmaStages<T, Rows, Columns, Split, true>;
  Stages stages;
  stages.open();
  wait_for_previous_kernel();
  const int slices = p.channels / Stages::kDepth;
  int index = 0;  // of the part
  const auto part_of = [&](int64_t tile) -> const WgmmaPart& {
    while (index + 1 < p.part_count && tile >= p.parts[index + 1].first_tile) ++index;
    return p.parts[index];
  };
  if (threadIdx.x >= kWgmmaConsumers) {
    shrink_registers<40>();
    if (threadIdx.x > kWgmmaConsumers) return;
    for (int64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
      const WgmmaPart& part = part_of(tile);
      const int64_t i = tile - part.first_tile;
      const int channel0 = static_cast<int>(i % p.row_tiles) * Rows;
      const Pixel first = pixel_at(part.grid, i / p.row_tiles * Columns);
      const int h = first.i * part.h.scale + part.h.shift;
      const int w = first.j * part.w.scale + part.w.shift, n = static_cast<int>(first.n);
      // All taps of a slice of channels before the next one: what they share stays in L2.
      for (int c = 0; c < p.channels; c += Stages::kDepth) {
        int at = c;
        for (int r = 0; r < part.h.taps; ++r) {
          for (int s = 0; s < part.w.taps; ++s, at += p.channels) {
            const SharedBarrier arrived = stages.acquire();
#pragma unroll
            for (int half = 0; half < Stages::kParts; ++half) {
              copy_box(stages.a() + half * Stages::kBytesA, part.weights, arrived, at,
                       channel0 + half * p.columns);
              copy_pixels(stages.b() + half * Stages::kBytesB, part.in, arrived, c, w, h,
                          n + half * p.images, s * part.w.step, r * part.h.step);
            }
            stages.advance();
          }
        }
      }
    }
  } else {
    grow_registers<232>();
    constexpr int kColumns = Stages::kGroupColumns;
    const int group = Stages::group();
    float c[kColumns / 2];
    for (int64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
      const WgmmaPart& part = part_of(tile);
      const int steps = part.h.taps * part.w.taps * slices;
      if constexpr (Split) {
        stages.multiply_split(c, steps);
      } else {
        stages.template multiply<Operand::flat>(c, steps);
      }
      const int64_t i = tile - part.first_tile;
      const int64_t m0 = i / p.row_tiles * Columns + (Rows == 64 ? group * kColumns : 0);
      const int channel0 = static_cast<int>(i % p.row_tiles) * Rows + (Rows == 64 ? 0 : group * 64);
      store_sums<T, kColumns>(part, p.bias, p.columns, c, stages.staging + group * 16384, m0,
                              channel0);
    }
    if (threadIdx.x % 128 == 0) wait_stores<0>();
  }
#endif
}

}  // namespace gradus
