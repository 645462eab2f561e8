// conv2d forward and backward to the input over halo tiles, on tensor cores.
#pragma once

#include "cuda/conv2d_halo.h"
#include "cuda/device/conv2d_halo_product.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {

// math    out[m][o] = bias[o] + Σ_{r,s,i} in[m ⊕ (r, s)][i] · weights[o][i, r, s]
// grid    x: blocks that walk through the tiles; y: groups x tiles of output channels x phases
// passes  one
// bytes   in once and its halo again, out once, the weights once per block
// smem    the block's weights, tables of a tile's pixels, and `stages` tiles
// needs   channels a multiple of 16 bytes, at most Steps * 32 bytes; in 16-byte aligned
// order   each output is summed by one thread, in the order (r, s, i)
// Split   strict f32: operands in two parts, whose three larger products are added
template <class T, int M, int N, int Steps, int Warps, int Taps, bool Split>
__global__ void __launch_bounds__(Warps * 32)
    conv2d_halo_gather(const __grid_constant__ HaloGather p) {
  constexpr int kPixelBytes = Steps * 32, kPitch = kPixelBytes + 16;
  int set = blockIdx.y;
  const HaloAxis& w = p.w[set % p.phases_w];
  set /= p.phases_w;
  const HaloAxis& h = p.h[set % p.phases_h];
  set /= p.phases_h;
  const int block_columns =
      ((p.columns + p.channel_tiles - 1) / p.channel_tiles + N * 8 - 1) / (N * 8) * (N * 8);
  const int column0 = set % p.channel_tiles * block_columns, group = set / p.channel_tiles;
  const int pixels = p.tile.images * p.tile.rows * p.tile.columns;
  const int parts = block_columns / (N * 8), units = (pixels + M * 16 - 1) / (M * 16) * parts;
  const int padded = units / parts * M * 16;

  const int weight_pitch = h.taps * w.taps * kHaloWeightBytes<Steps, Split> + 16;
  unsigned char* const weights = dynamic_shared();
  int* const sources = reinterpret_cast<int*>(weights + block_columns * weight_pitch);
  HaloTarget* const targets = reinterpret_cast<HaloTarget*>(sources + padded);
  const uint32_t weights_at = shared_address(weights);
  const uint32_t tiles_at = shared_address(targets + padded);
  const int tile_bytes = p.tile.images * p.tile.halo_rows * p.tile.halo_columns * kPitch;

  const auto load = [&](int tile, int stage) {
    if (tile < p.tiles) {
      const HaloPlace start = halo_start(p, tile);
      load_halo<T, Steps>(tiles_at + stage * tile_bytes, kPitch, static_cast<const T*>(p.in),
                          p.images, p.in_h, p.in_w, p.groups, group, p.channels,
                          p.tile.images * p.tile.halo_rows, p.tile.halo_rows, p.tile.halo_columns,
                          start.n, start.i * p.scale_h + h.shift, start.j * p.scale_w + w.shift);
    }
    commit_copies();
  };

  load(blockIdx.x, 0);
  fill_halo_weights<T, Steps, Taps, Split>(p, h, w, weights, weight_pitch, block_columns, column0,
                                           group);
  fill_halo_tables(p, p.tile.images > 1 ? h.outputs : p.tile.rows, kPitch, pixels, padded, sources,
                   targets);
  for (int tile = blockIdx.x, turn = 0; tile < p.tiles; tile += gridDim.x, ++turn) {
    if (p.stages == 2) {
      load(tile + gridDim.x, (turn + 1) % 2);
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncthreads();
    const uint32_t tile_at = tiles_at + (p.stages == 2 ? turn % 2 : 0) * tile_bytes;
    const HaloOutput<T> output(p, h, w, halo_start(p, tile), column0, group);
    for (int unit = threadIdx.x / 32; unit < units; unit += Warps) {
      const int group_of_pixels = parts == 1 ? unit : unit / parts;  // nearly always 1
      const int first = group_of_pixels * M * 16, part = (unit - group_of_pixels * parts) * N * 8;
      float c[M][N][4] = {};
      multiply_halo<T, M, N, Steps, Taps, Split>(p, h, w, c, tile_at, sources + first,
                                                 weights_at + part * weight_pitch, weight_pitch);
#pragma unroll
      for (int i = 0; i < M; ++i) {
        store_halo<T, N * 8>(p, c[i], targets + first + i * 16, output.end - first - i * 16,
                             output.end_column, output.to + part,
                             output.bias == nullptr ? nullptr : output.bias + part,
                             p.columns - column0 - part);
      }
    }
    __syncthreads();
    if (p.stages == 1) load(tile + gridDim.x, 0);
  }
}

template <class T, bool Split, int N, int Steps>
void launch_halo_gather(Cuda& cuda, const HaloGatherPlan& plan) {
  constexpr int kM = kHaloPixels / 16;
  const dim3 grid(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.sets));
  const LaunchShape shape{
      .grid = grid, .threads = kHaloWarps * 32, .shared_bytes = static_cast<size_t>(plan.shared)};
  if (plan.three_by_three) {
    launch_kernel(cuda, shape, conv2d_halo_gather<T, kM, N, Steps, kHaloWarps, 3, Split>,
                  plan.shape);
  } else {
    launch_kernel(cuda, shape, conv2d_halo_gather<T, kM, N, Steps, kHaloWarps, 0, Split>,
                  plan.shape);
  }
}

template <class T, bool Split, int N>
void launch_halo_gather(Cuda& cuda, const HaloGatherPlan& plan) {
  constexpr int kLeast = static_cast<int>(sizeof(T));  // steps of up to 32 channels
  plan.steps == kLeast ? launch_halo_gather<T, Split, N, kLeast>(cuda, plan)
                       : launch_halo_gather<T, Split, N, 2 * kLeast>(cuda, plan);
}

template <class T, bool Split>
void launch_halo_gather(Cuda& cuda, const HaloGatherPlan& plan) {
  if constexpr (sizeof(T) == 4) {
    if (plan.width == 16) return launch_halo_gather<T, Split, 2>(cuda, plan);
  }
  if constexpr (!Split) {
    if (plan.width == 64) return launch_halo_gather<T, Split, 8>(cuda, plan);
  }
  launch_halo_gather<T, Split, 4>(cuda, plan);
}

}  // namespace gradus
