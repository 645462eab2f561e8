// The first stage of conv2d backward to the weights, and its launcher. Instantiated per dtype in
// conv2d_wgrad_*.cu.
#pragma once

#include "cuda/conv2d_kernels.h"
#include "cuda/device/conv2d_wgrad.cuh"
#include "cuda/device/conv2d_wgrad_tile.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {

// math    partials[slice][k][r, s, c] = Σ_{pixels of the slice} dy[pixel][k] · x[pixel ⊕ (r, s)][c]
// grid    one block per slice, group, tile of kRows output channels and tile of kColumns positions
// passes  one over the slice's pixels, kDepth at a time, copied Stages - 1 steps ahead
// bytes   fewest: x, dy once; actual: x once per tap, dy once per column tile, mostly from caches
// smem    Stages x kDepth x (kRows + kColumns + padding), and two tables of pixels
// needs   channels and dy_channels multiples of 16 bytes, x and dy 16-byte aligned
// order   pixels in order within a slice; slices are added in order by conv2d_reduce
template <class T, class Tile, int Stages>
__global__ void __launch_bounds__(Tile::kThreads)
    conv2d_wgrad_gemm(const __grid_constant__ WgradGemm p) {
  constexpr int kTileA = Tile::kDepth * Tile::kPitchA, kTileB = Tile::kDepth * Tile::kPitchB;
  __shared__ PixelEntry entries[2][Tile::kDepth];
  T* const shared = reinterpret_cast<T*>(dynamic_shared());
  start_next_kernel();

  int64_t tile = blockIdx.x;
  const int column0 = static_cast<int>(tile % p.column_tiles) * Tile::kColumns;
  tile /= p.column_tiles;
  const int row0 = static_cast<int>(tile % p.row_tiles) * Tile::kRows;
  tile /= p.row_tiles;
  const int group = static_cast<int>(tile % p.groups);
  const int64_t slice = tile / p.groups;
  const int64_t begin = slice * p.slice_pixels;
  const int64_t end = min(begin + p.slice_pixels, p.gather.out.pixels);
  const int steps = static_cast<int>((end - begin + Tile::kDepth - 1) / Tile::kDepth);

  const WgradLoader<T, Tile> loader(p, group, row0, column0);
  const auto fill = [&](int step) {
    loader.fill(entries[step % 2], begin + static_cast<int64_t>(step) * Tile::kDepth, end);
  };
  const auto load = [&](int step) {
    T* a = shared + step % Stages * (kTileA + kTileB);
    loader.load(a, a + kTileA, entries[step % 2], begin + static_cast<int64_t>(step) * Tile::kDepth,
                end);
  };

  fill(0);
  for (int i = 0; i < Stages - 1; ++i) {
    __syncthreads();
    if (i < steps) load(i);
    commit_copies();
    fill(i + 1);
  }
  Tile product;
  for (int i = 0; i < steps; ++i) {
    wait_copies<Stages - 2>();
    __syncthreads();
    if (i + Stages - 1 < steps) load(i + Stages - 1);
    commit_copies();
    fill(i + Stages);
    const T* a = shared + i % Stages * (kTileA + kTileB);
    product.multiply(a, a + kTileA);
  }

  auto* out = static_cast<acc_t<T>*>(p.partials) + (slice * p.groups + group) * p.rows * p.depth;
  product.each([&](int row, int column, acc_t<T> first, acc_t<T> second) {
    row += row0;
    column += column0;
    if (row >= p.rows || column >= p.depth) return;
    // depth is even, so the second column exists too
    store_pack(out + static_cast<int64_t>(row) * p.depth + column,
               Pack<acc_t<T>, 2>{first, second});
  });
}

template <class T, class Tile, int Stages>
void launch_wgrad_gemm(Cuda& cuda, WgradGemm p, int64_t slices) {
  constexpr size_t kBytes = sizeof(T) * Stages * Tile::kDepth * (Tile::kPitchA + Tile::kPitchB);
  p.row_tiles = (p.rows + Tile::kRows - 1) / Tile::kRows;
  p.column_tiles = (p.depth + Tile::kColumns - 1) / Tile::kColumns;
  const int64_t blocks = slices * p.groups * p.row_tiles * p.column_tiles;
  launch_kernel(cuda, {dim3(exact_blocks(blocks, "conv2d")), Tile::kThreads, kBytes},
                conv2d_wgrad_gemm<T, Tile, Stages>, p);
}

}  // namespace gradus
