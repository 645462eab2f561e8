// The weight gradient over halo tiles: its tiles of dy and x in shared memory, what a warp
// multiplies of them, and how the warps' sums leave.
#pragma once

#include "cuda/device/conv2d_halo.cuh"
#include "cuda/device/split_tf32.cuh"

namespace gradus {

// Bytes after the channels of a pixel, so that what a warp reads together lies in different banks.
template <class T>
inline constexpr int kWgradPad = sizeof(T) == 4 ? 32 : 16;

// Shared memory: zeros as large as a window, the table of where each pixel's window begins in a
// tile, and the tiles, each dy and then x.
template <class T, int RowSteps, int Steps>
struct HaloWgradTiles {
  static constexpr int kPitchX = Steps * 32 + kWgradPad<T>;
  static constexpr int kPitchY = RowSteps * 32 + kWgradPad<T>;
  static constexpr int kPixels = 32 / static_cast<int>(sizeof(T));  // per product

  const HaloWgrad& p;
  int group, k0, end;
  int padded_pixels, y_bytes, x_bytes, zero_bytes;
  int* table;
  uint32_t zeros_at, tiles_at;

  __device__ __forceinline__ HaloWgradTiles(const HaloWgrad& problem, unsigned char* shared,
                                            int first_row, int last_tile)
      : p(problem), group(blockIdx.y), k0(first_row), end(last_tile) {
    const int pixels = p.tile.images * p.tile.rows * p.tile.columns;
    padded_pixels = (pixels + kPixels - 1) / kPixels * kPixels;
    y_bytes = padded_pixels * kPitchY;
    x_bytes = p.tile.images * p.tile.halo_rows * p.tile.halo_columns * kPitchX;
    const int window = (p.taps_h - 1) * p.step_h * p.tile.halo_columns + (p.taps_w - 1) * p.step_w;
    zero_bytes = (window + 1) * kPitchX;
    table = reinterpret_cast<int*>(shared + zero_bytes);
    zeros_at = shared_address(shared);
    tiles_at = zeros_at + zero_bytes + padded_pixels * 4;
  }

  // Table and zeros: the same for every tile.
  __device__ __forceinline__ void prepare(unsigned char* shared) const {
    const int area = p.tile.rows * p.tile.columns;
    for (int i = threadIdx.x; i < zero_bytes / 16; i += blockDim.x) {
      reinterpret_cast<uint4*>(shared)[i] = uint4{};
    }
    for (int i = threadIdx.x; i < padded_pixels; i += blockDim.x) {
      const int n = static_cast<int>(p.tile_area.quotient(i)), rest = i - n * area;
      const int row = static_cast<int>(p.tile_width.quotient(rest));
      const int column = rest - row * p.tile.columns;
      const int place = (n * p.tile.halo_rows + row * p.scale_h) * p.tile.halo_columns;
      table[i] = y_bytes + (place + column * p.scale_w) * kPitchX;
    }
  }

  // The pixels of a tile that exist are its first ones.
  __device__ __forceinline__ int valid(int tile) const {
    const int i0 = tile % p.row_tiles * p.tile.rows, n0 = tile / p.row_tiles * p.tile.images;
    return min(p.tile.images, p.images - n0) * min(p.tile.rows, p.out_h - i0) * p.tile.columns;
  }
  __device__ __forceinline__ uint32_t at(int stage) const {
    return tiles_at + stage * (y_bytes + x_bytes);
  }
  // Where the window of a pixel begins; zeros for pixels that do not exist.
  __device__ __forceinline__ uint32_t window(uint32_t tile_at, int pixel, int valid_pixels) const {
    return pixel < valid_pixels ? tile_at + table[pixel] : zeros_at;
  }

  // Starts the copies of a tile, if it is the block's.
  __device__ __forceinline__ void load(int tile, int stage) const {
    if (tile < end) {
      const int i0 = tile % p.row_tiles * p.tile.rows, n0 = tile / p.row_tiles * p.tile.images;
      const int valid_pixels = valid(tile);
      const int64_t first = (static_cast<int64_t>(n0) * p.out_h + i0) * p.out_w;
      const T* dy = static_cast<const T*>(p.dy);
      for (unsigned e = threadIdx.x; e < padded_pixels * RowSteps * 2u; e += blockDim.x) {
        const int pixel = e / (RowSteps * 2u), vector = e % (RowSteps * 2u);
        const int k = k0 + vector * kFullPack<T>;
        const bool inside = pixel < valid_pixels && k < p.rows;
        const T* from = dy + ((first + pixel) * p.groups + group) * p.rows + k;
        copy_async_streamed(at(stage) + pixel * kPitchY + vector * 16, inside ? from : dy, inside);
      }
      load_halo<T, Steps>(at(stage) + y_bytes, kPitchX, static_cast<const T*>(p.x), p.images,
                          p.in_h, p.in_w, p.groups, group, p.channels,
                          p.tile.images * p.tile.halo_rows, p.tile.halo_rows, p.tile.halo_columns,
                          n0, i0 * p.scale_h + p.shift_h, p.shift_w);
    }
    commit_copies();
  }
};

// A warp's M * 16 rows k by N * 8 positions (r, s, channel). Split: of strict f32, whose operands
// become two parts each; the tensor cores add up no more than 32 terms, since they cut their sums
// off.
template <class T, int M, int N, int RowSteps, int Steps, bool Split>
struct HaloWgradProduct {
  using Tiles = HaloWgradTiles<T, RowSteps, Steps>;
  static constexpr int kWide = sizeof(T) == 4 ? 1 : 2;  // products whose x one load brings

  float c[M][N][4] = {};
  float short_sums[Split ? M : 1][N][4] = {};  // of the last short_steps products
  int short_steps = 0;
  int offsets[N / kWide];  // of each range of positions, from tap (0, 0) of channel 0
  int row0, column0, positions;

  __device__ __forceinline__ HaloWgradProduct(const HaloWgrad& p, int row, int column)
      : row0(row), column0(column), positions(p.taps_h * p.taps_w * p.padded) {
#pragma unroll
    for (int j = 0; j < N / kWide; ++j) {
      const int position = min(column0 + j * kWide * 8, positions - kWide * 8);
      const int tap = position / p.padded, r = tap / p.taps_w, s = tap - r * p.taps_w;
      offsets[j] = (r * p.step_h * p.tile.halo_columns + s * p.step_w) * Tiles::kPitchX +
                   (position - tap * p.padded) * static_cast<int>(sizeof(T));
    }
  }

  static __device__ __forceinline__ uint32_t word(uint32_t at) {
    uint32_t value;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(at));
    return Split ? value : round_to_tf32(value);
  }

  // dy of the pixels from `first` on.
  __device__ __forceinline__ void load_dy(uint32_t (&a)[M][4], uint32_t tile_at, int first) const {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t a_at = tile_at + (first + t) * Tiles::kPitchY + (row0 + g) * 4;
#pragma unroll
    for (int i = 0; i < M; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        a[i][e] = word(a_at + e / 2 * 4 * Tiles::kPitchY + i * 64 + e % 2 * 32);
      }
    }
  }

  // The same as multiply() in strict f32: the smaller products come first.
  __device__ __forceinline__ void multiply_split(const Tiles& tiles, uint32_t tile_at, int first,
                                                 int valid) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint32_t at[2] = {tiles.window(tile_at, first + t, valid) + g * 4,
                            tiles.window(tile_at, first + t + 4, valid) + g * 4};
    uint32_t a[M][4], big[M][4], small[M][4];
    load_dy(a, tile_at, first);
#pragma unroll
    for (int i = 0; i < M; ++i) split_tf32(a[i], big[i], small[i]);
    constexpr int kAtOnce = N / 2;  // so that the registers suffice
#pragma unroll
    for (int j0 = 0; j0 < N; j0 += kAtOnce) {
      uint32_t b[kAtOnce * 2], b_big[kAtOnce * 2], b_small[kAtOnce * 2];
#pragma unroll
      for (int e = 0; e < kAtOnce * 2; ++e) b[e] = word(at[e % 2] + offsets[j0 + e / 2]);
      split_tf32(b, b_big, b_small);
#pragma unroll
      for (int product = 0; product < 3; ++product) {
        const uint32_t(&x)[kAtOnce * 2] = product == 1 ? b_small : b_big;
#pragma unroll
        for (int i = 0; i < M; ++i) {
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) {
            MmaStep<T>::run(short_sums[i][j0 + j], product == 0 ? small[i] : big[i], x[j * 2],
                            x[j * 2 + 1]);
          }
        }
      }
    }
    if (++short_steps == kSplitSteps) add_short_sums();
  }

  // Adds the pixels from `first` on that one product takes.
  __device__ __forceinline__ void multiply(const Tiles& tiles, uint32_t tile_at, int first,
                                           int valid) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t a[M][4];
    if constexpr (sizeof(T) == 4) {
      load_dy(a, tile_at, first);
      const uint32_t b0 = tiles.window(tile_at, first + t, valid) + g * 4;
      const uint32_t b1 = tiles.window(tile_at, first + t + 4, valid) + g * 4;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const uint32_t x0 = word(b0 + offsets[j]), x1 = word(b1 + offsets[j]);
#pragma unroll
        for (int i = 0; i < M; ++i) MmaStep<T>::run(c[i][j], a[i], x0, x1);
      }
    } else {
      const uint32_t a_at = tile_at + (first + lane / 16 * 8 + lane % 8) * Tiles::kPitchY +
                            (row0 + lane / 8 % 2 * 8) * 2;
#pragma unroll
      for (int i = 0; i < M; ++i) load_matrices_transposed(a[i], a_at + i * 32);
      const uint32_t b_at =
          tiles.window(tile_at, first + lane / 8 % 2 * 8 + lane % 8, valid) + lane / 16 * 16;
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

  __device__ __forceinline__ void add_short_sums() {
#pragma unroll
    for (int e = 0; e < M * N * 4; ++e) {
      float& sum = short_sums[e / 4 / N][e / 4 % N][e % 4];
      c[e / 4 / N][e / 4 % N][e % 4] += sum;
      sum = 0;
    }
    short_steps = 0;
  }

  // Adds the sums of the warps that share the pixels to those of the first of them, in order.
  __device__ __forceinline__ void add_splits(unsigned char* shared, int units, int unit, int split,
                                             int splits) {
    float4* const mail = reinterpret_cast<float4*>(shared) + unit * 32 + threadIdx.x % 32;
    for (int from = 1; from < splits; ++from) {
      __syncthreads();
#pragma unroll
      for (int e = 0; e < M * N; ++e) {
        const float(&sum)[4] = c[e / N][e % N];
        if (split == from) mail[e * units * 32] = {sum[0], sum[1], sum[2], sum[3]};
      }
      __syncthreads();
#pragma unroll
      for (int e = 0; e < M * N; ++e) {
        if (split != 0) continue;
        const float4 sum = mail[e * units * 32];
        float(&to)[4] = c[e / N][e % N];
        to[0] += sum.x, to[1] += sum.y, to[2] += sum.z, to[3] += sum.w;
      }
    }
  }

  // Writes the sums of rows k0 + row0, ... to `out` [rows][positions].
  __device__ __forceinline__ void store(float* out, int k0, int rows) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < M; ++i) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const int column = column0 + j * 8 + 2 * t;
        if (column >= positions) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int k = k0 + row0 + i * 16 + half * 8 + g;
          if (k >= rows) continue;
          store_pack(out + static_cast<int64_t>(k) * positions + column,
                     Pack<float, 2>{c[i][j][half * 2], c[i][j][half * 2 + 1]});
        }
      }
    }
  }
};

}  // namespace gradus
