// conv2d backward to the weights over halo tiles, on tensor cores.
#pragma once

#include "cuda/conv2d_halo.h"
#include "cuda/device/conv2d_bias_sums.cuh"
#include "cuda/device/conv2d_halo_wgrad.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {

// math    partials[slice][k][r, s, c] = Σ_{pixels of the slice} dy[m][k] · x[m ⊕ (r, s)][c]
//         Bias: bias_sums[slice][k] = Σ dy[m][k], of dy as it is stored
// grid    x: slices of tiles; y: groups; z: tiles of rows k, which a block's warps share as they
//         do the positions (r, s, c) and the pixels
// passes  one
// bytes   dy once, x once and its halo again, partials
// smem    two tiles of dy and x, zeros as large as a window, the tile's table of pixels
// needs   channels and rows multiples of 16 bytes, x and dy 16-byte aligned
// order   pixels of a warp in order, then the warps; slices are added by conv2d_reduce
// Split   strict f32: operands in two parts, whose three larger products are added
template <class T, int M, int N, int RowSteps, int Steps, int Threads, bool Bias, bool Split>
__global__ void __launch_bounds__(Threads) conv2d_halo_wgrad(const __grid_constant__ HaloWgrad p) {
  using Tiles = HaloWgradTiles<T, RowSteps, Steps>;
  unsigned char* const shared = dynamic_shared();
  const int begin = blockIdx.x * p.tiles_per_slice, end = min(begin + p.tiles_per_slice, p.tiles);
  const int k0 = blockIdx.z * p.row_units * M * 16;
  const Tiles tiles(p, shared, k0, end);
  tiles.prepare(shared);
  wait_for_previous_kernel();
  start_next_kernel();
  tiles.load(begin, 0);

  const int warp = threadIdx.x / 32, units = p.row_units * p.column_units;
  const int unit = warp % units, split = warp / units;
  HaloWgradProduct<T, M, N, RowSteps, Steps, Split> product(p, unit % p.row_units * M * 16,
                                                            unit / p.row_units * N * 8);
  [[maybe_unused]] BiasSums<T, RowSteps * 32 / static_cast<int>(sizeof(T))> bias;
  for (int tile = begin, turn = 0; tile < end; ++tile, ++turn) {
    tiles.load(tile + 1, (turn + 1) % 2);
    wait_copies<1>();
    __syncthreads();
    const int valid = tiles.valid(tile);
    const uint32_t tile_at = tiles.at(turn % 2);
    if constexpr (Bias) {
      bias.take(shared + (tile_at - tiles.zeros_at), valid,
                [](int pixel, int vector) { return pixel * Tiles::kPitchY + vector * 16; });
    }
    for (int first = split * Tiles::kPixels; first < valid; first += p.splits * Tiles::kPixels) {
      if constexpr (Split) {
        product.multiply_split(tiles, tile_at, first, valid);
      } else {
        product.multiply(tiles, tile_at, first, valid);
      }
    }
    __syncthreads();
  }

  const int64_t slice = static_cast<int64_t>(blockIdx.x) * p.groups + blockIdx.y;
  if constexpr (Bias) {
    bias.store(reinterpret_cast<float*>(shared), p.bias_sums + slice * p.rows + k0, p.rows - k0);
  }
  if constexpr (Split) product.add_short_sums();
  product.add_splits(shared, units, unit, split, p.splits);
  if (split != 0) return;
  product.store(static_cast<float*>(p.partials) + slice * p.rows * product.positions, k0, p.rows);
}

template <class T, bool Split, int RowSteps, int Steps, bool Bias>
void launch_halo_wgrad(Cuda& cuda, const HaloWgradPlan& plan) {
  using Sums = BiasSums<T, RowSteps * 32 / static_cast<int>(sizeof(T))>;
  constexpr int kM = kHaloWgradRows / 16, kN = halo_wgrad_columns(Split) / 8;
  const HaloWgrad& p = plan.shape;
  const dim3 grid(exact_blocks(plan.slices, "conv2d"), static_cast<unsigned>(p.groups),
                  static_cast<unsigned>(plan.row_tiles));
  const int threads = 32 * p.row_units * p.column_units * p.splits;
  const int64_t sums = Bias ? Sums::shared_bytes(threads) : 0;
  launch_overlapping(
      cuda,
      {.grid = grid,
       .threads = threads,
       .shared_bytes = static_cast<size_t>(std::max(plan.shared, sums))},
      conv2d_halo_wgrad<T, kM, kN, RowSteps, Steps, kHaloWgradWarps * 32, Bias, Split>, p);
}

template <class T, bool Split, int RowSteps, int Steps>
void launch_halo_wgrad(Cuda& cuda, const HaloWgradPlan& plan) {
  plan.shape.bias_sums == nullptr ? launch_halo_wgrad<T, Split, RowSteps, Steps, false>(cuda, plan)
                                  : launch_halo_wgrad<T, Split, RowSteps, Steps, true>(cuda, plan);
}

template <class T, bool Split>
void launch_halo_wgrad(Cuda& cuda, const HaloWgradPlan& plan) {
  constexpr int kLeast = static_cast<int>(sizeof(T));  // steps of up to 32 channels
  const bool few = plan.steps == kLeast;
  if (plan.shape.row_units == 1) {
    return few ? launch_halo_wgrad<T, Split, kLeast, kLeast>(cuda, plan)
               : launch_halo_wgrad<T, Split, kLeast, 2 * kLeast>(cuda, plan);
  }
  few ? launch_halo_wgrad<T, Split, 2 * kLeast, kLeast>(cuda, plan)
      : launch_halo_wgrad<T, Split, 2 * kLeast, 2 * kLeast>(cuda, plan);
}

}  // namespace gradus
