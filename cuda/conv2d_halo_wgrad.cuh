// conv2d backward to the weights over halo tiles, on tensor cores.
#pragma once

#include "cuda/conv2d_halo.h"
#include "cuda/device/conv2d_halo.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {

// Bytes after the channels of a pixel, so that what a warp reads together lies in different banks.
template <class T>
inline constexpr int kWgradPad = sizeof(T) == 4 ? 32 : 16;

// math    partials[slice][k][r, s, c] = Σ_{pixels of the slice} dy[pixel][k] · x[pixel ⊕ (r, s)][c]
// grid    x: slices of tiles; y: groups; z: tiles of rows k. Warps share those rows, the positions
// and the pixels passes  one bytes   dy once, x once and its halo again, partials smem    `stages`
// tiles of dy and x, zeros as large as a window, the tile's table of pixels needs   channels and
// rows multiples of 16 bytes, x and dy 16-byte aligned order   pixels of a split in order, then the
// splits; slices are added by conv2d_reduce
template <class T, int M, int N, int RowSteps, int Steps, int Threads>
__global__ void __launch_bounds__(Threads) conv2d_halo_wgrad(const __grid_constant__ HaloWgrad p) {
  constexpr int kPitchX = Steps * 32 + kWgradPad<T>, kPitchY = RowSteps * 32 + kWgradPad<T>;
  constexpr int kPixels = 32 / static_cast<int>(sizeof(T));  // per product
  constexpr int kWide = sizeof(T) == 4 ? 1 : 2;              // products whose x one load brings
  const int group = blockIdx.y, k0 = blockIdx.z * p.row_units * M * 16;
  const int area = p.tile.rows * p.tile.columns, pixels = p.tile.images * area;
  const int padded_pixels = (pixels + kPixels - 1) / kPixels * kPixels;
  const int y_bytes = padded_pixels * kPitchY;
  const int x_bytes = p.tile.images * p.tile.halo_rows * p.tile.halo_columns * kPitchX;
  const int zero_bytes =
      (((p.taps_h - 1) * p.step_h * p.tile.halo_columns + (p.taps_w - 1) * p.step_w) + 1) * kPitchX;
  unsigned char* const shared = dynamic_shared();
  int* const table = reinterpret_cast<int*>(shared + zero_bytes);
  const uint32_t zeros_at = shared_address(shared);
  const uint32_t tiles_at = zeros_at + zero_bytes + padded_pixels * 4;

  // Table and zeros: the same for every tile.
  for (int i = threadIdx.x; i < zero_bytes / 16; i += blockDim.x) {
    reinterpret_cast<uint4*>(shared)[i] = uint4{};
  }
  for (int i = threadIdx.x; i < padded_pixels; i += blockDim.x) {
    const int n = static_cast<int>(p.tile_area.quotient(i)), rest = i - n * area;
    const int row = static_cast<int>(p.tile_width.quotient(rest));
    const int column = rest - row * p.tile.columns;
    table[i] = y_bytes + ((n * p.tile.halo_rows + row * p.scale_h) * p.tile.halo_columns +
                          column * p.scale_w) *
                             kPitchX;
  }

  // Valid pixels of a tile are its first ones.
  const auto valid_pixels = [&](int tile) {
    const int i0 = tile % p.row_tiles * p.tile.rows, n0 = tile / p.row_tiles * p.tile.images;
    return min(p.tile.images, p.images - n0) * min(p.tile.rows, p.out_h - i0) * p.tile.columns;
  };
  const int end = min((static_cast<int>(blockIdx.x) + 1) * p.tiles_per_slice, p.tiles);
  const auto load = [&](int tile, int stage) {
    if (tile < end) {
      const int i0 = tile % p.row_tiles * p.tile.rows, n0 = tile / p.row_tiles * p.tile.images;
      const uint32_t y_at = tiles_at + stage * (y_bytes + x_bytes);
      const int valid = valid_pixels(tile);
      const int64_t first = (static_cast<int64_t>(n0) * p.out_h + i0) * p.out_w;
      const T* dy = static_cast<const T*>(p.dy);
      for (int e = threadIdx.x; e < padded_pixels * RowSteps * 2; e += blockDim.x) {
        const int pixel = e / (RowSteps * 2), k = e % (RowSteps * 2) * kFullPack<T>;
        const bool inside = pixel < valid && k0 + k < p.rows;
        copy_async_streamed(
            y_at + pixel * kPitchY + e % (RowSteps * 2) * 16,
            inside ? dy + ((first + pixel) * p.groups + group) * p.rows + k0 + k : dy, inside);
      }
      load_halo<T, Steps, kPitchX>(y_at + y_bytes, static_cast<const T*>(p.x), p.images, p.in_h,
                                   p.in_w, p.groups, group, p.channels,
                                   p.tile.images * p.tile.halo_rows, p.tile.halo_rows,
                                   p.tile.halo_columns, n0, i0 * p.scale_h + p.shift_h, p.shift_w);
    }
    commit_copies();
  };

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int row0 = warp % p.row_units * M * 16;
  const int column0 = warp / p.row_units % p.column_units * N * 8;
  const int split = warp / (p.row_units * p.column_units);
  const int positions = p.taps_h * p.taps_w * p.padded;
  int offsets[N / kWide];  // of each range of positions, from tap (0, 0) of channel 0
#pragma unroll
  for (int j = 0; j < N / kWide; ++j) {
    const int position = min(column0 + j * kWide * 8, positions - kWide * 8);
    const int tap = position / p.padded, r = tap / p.taps_w, s = tap - r * p.taps_w;
    offsets[j] = (r * p.step_h * p.tile.halo_columns + s * p.step_w) * kPitchX +
                 (position - tap * p.padded) * static_cast<int>(sizeof(T));
  }

  float c[M][N][4] = {};
  const int begin = blockIdx.x * p.tiles_per_slice;
  load(begin, 0);
  for (int tile = begin, turn = 0; tile < end; ++tile, ++turn) {
    if (p.stages == 2) {
      load(tile + 1, (turn + 1) % 2);
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncthreads();
    const uint32_t y_at = tiles_at + (p.stages == 2 ? turn % 2 : 0) * (y_bytes + x_bytes);
    const int valid = valid_pixels(tile);
    for (int first = split * kPixels; first < valid; first += p.splits * kPixels) {
      uint32_t a[M][4];
      if constexpr (sizeof(T) == 4) {
        const auto word = [](uint32_t at) {
          uint32_t value;
          asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(at));
          return round_to_tf32(value);
        };
        const uint32_t a_at = y_at + (first + t) * kPitchY + (row0 + g) * 4;
#pragma unroll
        for (int i = 0; i < M; ++i) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            a[i][e] = word(a_at + e / 2 * 4 * kPitchY + i * 64 + e % 2 * 32);
          }
        }
        const uint32_t b0 = (first + t < valid ? y_at + table[first + t] : zeros_at) + g * 4;
        const uint32_t b1 =
            (first + t + 4 < valid ? y_at + table[first + t + 4] : zeros_at) + g * 4;
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const uint32_t x0 = word(b0 + offsets[j]), x1 = word(b1 + offsets[j]);
#pragma unroll
          for (int i = 0; i < M; ++i) MmaStep<T>::run(c[i][j], a[i], x0, x1);
        }
      } else {
        const uint32_t a_at =
            y_at + (first + lane / 16 * 8 + lane % 8) * kPitchY + (row0 + lane / 8 % 2 * 8) * 2;
#pragma unroll
        for (int i = 0; i < M; ++i) load_matrices_transposed(a[i], a_at + i * 32);
        const int pixel = first + lane / 8 % 2 * 8 + lane % 8;
        const uint32_t b_at = (pixel < valid ? y_at + table[pixel] : zeros_at) + lane / 16 * 16;
#pragma unroll
        for (int j = 0; j < N; j += 2) {
          uint32_t b[4];
          load_matrices_transposed(b, b_at + offsets[j / kWide]);
#pragma unroll
          for (int i = 0; i < M; ++i) {
            MmaStep<T>::run(c[i][j], a[i], b[0], b[1]);
            MmaStep<T>::run(c[i][j + 1], a[i], b[2], b[3]);
          }
        }
      }
    }
    __syncthreads();
    if (p.stages == 1) load(tile + 1, 0);
  }

  // The splits' sums, in order, through shared memory.
  float4* const mail = reinterpret_cast<float4*>(shared);
  const int units = p.row_units * p.column_units, unit = warp % units;
  for (int from = 1; from < p.splits; ++from) {
    __syncthreads();
#pragma unroll
    for (int e = 0; e < M * N; ++e) {
      const float(&sum)[4] = c[e / N][e % N];
      if (split == from) mail[(e * units + unit) * 32 + lane] = {sum[0], sum[1], sum[2], sum[3]};
    }
    __syncthreads();
    if (split != 0) continue;
#pragma unroll
    for (int e = 0; e < M * N; ++e) {
      const float4 sum = mail[(e * units + unit) * 32 + lane];
      float(&to)[4] = c[e / N][e % N];
      to[0] += sum.x, to[1] += sum.y, to[2] += sum.z, to[3] += sum.w;
    }
  }
  if (split != 0) return;
  const int64_t slice = static_cast<int64_t>(blockIdx.x) * p.groups + group;
  float* out = static_cast<float*>(p.partials) + slice * p.rows * positions;
#pragma unroll
  for (int i = 0; i < M; ++i) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const int column = column0 + j * 8 + 2 * t;
      if (column >= positions) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int k = k0 + row0 + i * 16 + half * 8 + g;
        if (k >= p.rows) continue;
        store_pack(out + static_cast<int64_t>(k) * positions + column,
                   Pack<float, 2>{c[i][j][half * 2], c[i][j][half * 2 + 1]});
      }
    }
  }
}

template <class T, int RowSteps, int Steps>
void launch_halo_wgrad(Cuda& cuda, const HaloWgradPlan& plan) {
  constexpr int kM = kHaloWgradRows / 16, kN = kHaloWgradColumns / 8;
  const HaloWgrad& p = plan.shape;
  const dim3 grid(exact_blocks(plan.slices, "conv2d"), static_cast<unsigned>(p.groups),
                  static_cast<unsigned>(plan.row_tiles));
  launch_kernel(
      cuda, {grid, 32 * p.row_units * p.column_units * p.splits, static_cast<size_t>(plan.shared)},
      conv2d_halo_wgrad<T, kM, kN, RowSteps, Steps, kHaloWgradWarps * 32>, p);
}

template <class T>
void launch_halo_wgrad(Cuda& cuda, const HaloWgradPlan& plan) {
  constexpr int kLeast = static_cast<int>(sizeof(T));  // steps of up to 32 channels
  const bool few = plan.steps == kLeast;
  if (plan.shape.row_units == 1) {
    return few ? launch_halo_wgrad<T, kLeast, kLeast>(cuda, plan)
               : launch_halo_wgrad<T, kLeast, 2 * kLeast>(cuda, plan);
  }
  few ? launch_halo_wgrad<T, 2 * kLeast, kLeast>(cuda, plan)
      : launch_halo_wgrad<T, 2 * kLeast, 2 * kLeast>(cuda, plan);
}

}  // namespace gradus
