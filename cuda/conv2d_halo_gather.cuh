// conv2d forward and backward to the input over halo tiles, on tensor cores.
#pragma once

#include "cuda/conv2d_halo.h"
#include "cuda/device/conv2d_halo.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {

// Row of output channel `o` in shared memory. A lane's results lie in columns 2t, 2t + 1 of each
// 8-column product; with this order those of kFullPack / 2 products are neighbouring channels, and
// leave as one 16-byte store.
template <class T>
__device__ __forceinline__ int weight_row(int o) {
  constexpr int kV = kFullPack<T>;
  return o / (4 * kV) * (4 * kV) + o % kV / 2 * 8 + o / kV % 4 * 2 + o % 2;
}

// One word of the weights, of input channels `i` on: rounded to TF32 if f32.
template <class T>
__device__ __forceinline__ uint32_t halo_weight(const T* at, int stride, int count) {
  if constexpr (sizeof(T) == 4) {
    return count > 0 ? round_to_tf32(__float_as_uint(*at)) : 0;
  } else {
    const uint32_t low = count > 0 ? at[0].bits : 0, high = count > 1 ? at[stride].bits : 0;
    return low | high << 16;
  }
}

// Weights of the block's output channels, as [channel][tap][in], into shared memory. Taps: of both
// axes if known when compiled, so that a thread's loads are under way together; else 0.
template <class T, int Steps, int Taps>
__device__ __forceinline__ void fill_halo_weights(const HaloGather& p, const HaloAxis& h,
                                                  const HaloAxis& w, unsigned char* to, int pitch,
                                                  int columns, int column0, int group) {
  constexpr int kWords = Steps * 8, kPerWord = 4 / static_cast<int>(sizeof(T));
  const T* from = static_cast<const T*>(p.weights) + static_cast<int64_t>(group) * p.weight_group;
  const bool along_in = p.weight_in < p.weight_out;  // which of the two neighbours in memory
#pragma unroll 2
  for (int e = threadIdx.x; e < columns * kWords; e += blockDim.x) {
    const int o = along_in ? e / kWords : e % columns;
    const int word = along_in ? e % kWords : e / columns, i = word * kPerWord;
    const int count = column0 + o < p.columns ? p.channels - i : 0;
    const T* at = from + static_cast<int64_t>(column0 + o) * p.weight_out +
                  static_cast<int64_t>(i) * p.weight_in;
    uint32_t* row = reinterpret_cast<uint32_t*>(to + weight_row<T>(o) * pitch) + word;
    if constexpr (Taps > 0) {
      uint32_t words[Taps * Taps];
#pragma unroll
      for (int tap = 0; tap < Taps * Taps; ++tap) {
        words[tap] = halo_weight(at + h.index[tap / Taps] * p.weight_row + w.index[tap % Taps],
                                 p.weight_in, count);
      }
#pragma unroll
      for (int tap = 0; tap < Taps * Taps; ++tap) row[tap * kWords] = words[tap];
    } else {
      for (int r = 0; r < h.taps; ++r) {
        for (int s = 0; s < w.taps; ++s, row += kWords) {
          *row = halo_weight(at + h.index[r] * p.weight_row + w.index[s], p.weight_in, count);
        }
      }
    }
  }
}

struct HaloPlace {
  int n, i, j;  // image, row and column within the phase
};

__device__ __forceinline__ HaloPlace halo_place(const HaloGather& p, int pixel) {
  const int n = static_cast<int>(p.tile_area.quotient(pixel));
  const int rest = pixel - n * static_cast<int>(p.tile_area.divisor);
  const int i = static_cast<int>(p.tile_width.quotient(rest));
  return {n, i, rest - i * static_cast<int>(p.tile_width.divisor)};
}

// Adds the bias and writes the sums of a warp, M x 16 pixels from `first` on.
template <class T, int M, int N>
__device__ __forceinline__ void store_halo(const HaloGather& p, const HaloAxis& h,
                                           const HaloAxis& w, const float (&c)[M][N][4], int first,
                                           int column0, int group, int n0, int i0, int j0) {
  constexpr int kV = kFullPack<T>;
  const int lane = threadIdx.x % 32;
  const float* bias = static_cast<const float*>(p.bias);
#pragma unroll
  for (int i = 0; i < M; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int pixel = first + i * 16 + half * 8 + lane / 4;
      const HaloPlace at = halo_place(p, pixel);
      if (at.n >= p.tile.images || n0 + at.n >= p.images || i0 + at.i >= h.outputs ||
          j0 + at.j >= w.outputs) {
        continue;
      }
      const int64_t row =
          static_cast<int64_t>(n0 + at.n) * p.out_h + h.first + (i0 + at.i) * p.step_h;
      const int64_t place = (row * p.out_w + w.first + (j0 + at.j) * p.step_w) * p.groups + group;
      T* out = static_cast<T*>(p.out) + place * p.columns;
#pragma unroll
      for (int pack = 0; pack < N / (kV / 2); ++pack) {
        const int column = column0 + pack * 4 * kV + lane % 4 * kV;
        if (column >= p.columns) continue;
        float sums[kV];
#pragma unroll
        for (int e = 0; e < kV; ++e) {
          sums[e] = c[i][pack * (kV / 2) + e / 2][half * 2 + e % 2];
          if (bias != nullptr && column + e < p.columns) {
            sums[e] += bias[group * p.columns + column + e];
          }
        }
        const auto values = narrow_pack<T>(sums);
        if (p.vector_out) {
          store_pack(out + column, values);
        } else {
#pragma unroll
          for (int e = 0; e < kV; ++e) {
            if (column + e < p.columns) out[column + e] = values[e];
          }
        }
      }
    }
  }
}

// math    out[m][o] = bias[o] + Σ_{r,s,i} in[m ⊕ (r, s)][i] · weights[o][i, r, s]
// grid    x: blocks that walk through the tiles; y: groups x tiles of output channels x phases
// passes  one
// bytes   in once and its halo again, out once, the weights once per block
// smem    the block's weights, and `stages` tiles
// needs   channels a multiple of 16 bytes, at most Steps * 32 bytes; in 16-byte aligned
// order   each output is summed by one thread, in the order (r, s, i)
template <class T, int M, int N, int Steps, int Warps, int Taps>
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
  const int weight_pitch = h.taps * w.taps * kPixelBytes + 16;
  unsigned char* const weights = dynamic_shared();
  const int tile_bytes = p.tile.images * p.tile.halo_rows * p.tile.halo_columns * kPitch;
  const uint32_t weights_at = shared_address(weights);
  const uint32_t tiles_at = weights_at + block_columns * weight_pitch;

  int n0, i0, j0;
  const auto place = [&](int tile) {
    j0 = tile % p.column_tiles * p.tile.columns;
    tile /= p.column_tiles;
    i0 = tile % p.row_tiles * p.tile.rows;
    n0 = tile / p.row_tiles * p.tile.images;
  };
  const auto load = [&](int tile, int stage) {
    if (tile < p.tiles) {
      place(tile);
      load_halo<T, Steps, kPitch>(
          tiles_at + stage * tile_bytes, static_cast<const T*>(p.in), p.images, p.in_h, p.in_w,
          p.groups, group, p.channels, p.tile.images * p.tile.halo_rows, p.tile.halo_rows,
          p.tile.halo_columns, n0, i0 * p.scale_h + h.shift, j0 * p.scale_w + w.shift);
    }
    commit_copies();
  };

  load(blockIdx.x, 0);
  fill_halo_weights<T, Steps, Taps>(p, h, w, weights, weight_pitch, block_columns, column0, group);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int pixels = p.tile.images * p.tile.rows * p.tile.columns;
  const int parts = block_columns / (N * 8), units = (pixels + M * 16 - 1) / (M * 16) * parts;
  for (int tile = blockIdx.x, turn = 0; tile < p.tiles; tile += gridDim.x, ++turn) {
    if (p.stages == 2) {
      load(tile + gridDim.x, (turn + 1) % 2);
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncthreads();
    place(tile);
    const uint32_t tile_at = tiles_at + (p.stages == 2 ? turn % 2 : 0) * tile_bytes;
    for (int unit = warp; unit < units; unit += Warps) {
      const int first = unit / parts * M * 16, part = unit % parts * N * 8;
      float c[M][N][4] = {};
      uint32_t a_at[M];
#pragma unroll
      for (int i = 0; i < M; ++i) {
        const HaloPlace at = halo_place(p, min(first + i * 16 + lane % 16, pixels - 1));
        const int row = at.n * p.tile.halo_rows + at.i * p.scale_h;
        a_at[i] =
            tile_at + (row * p.tile.halo_columns + at.j * p.scale_w) * kPitch + lane / 16 * 16;
      }
      uint32_t b_at =
          weights_at + (part + lane / 16 * 8 + lane % 8) * weight_pitch + lane / 8 % 2 * 16;
#pragma unroll 1
      for (int r = 0; r < (Taps > 0 ? Taps : h.taps); ++r) {
#pragma unroll(Taps > 0 ? Taps : 1)
        for (int s = 0; s < (Taps > 0 ? Taps : w.taps); ++s, b_at += kPixelBytes) {
          const int shift = (h.offset[r] * p.tile.halo_columns + w.offset[s]) * kPitch;
#pragma unroll
          for (int step = 0; step < Steps; ++step) {
            uint32_t a[M][4], b[N / 2][4];
#pragma unroll
            for (int i = 0; i < M; ++i) {
              load_matrices(a[i], a_at[i] + shift + step * 32);
              if constexpr (sizeof(T) == 4) {
                for (uint32_t& word : a[i]) word = round_to_tf32(word);
              }
            }
#pragma unroll
            for (int j = 0; j < N / 2; ++j) {
              load_matrices(b[j], b_at + j * 16 * weight_pitch + step * 32);
            }
#pragma unroll
            for (int i = 0; i < M; ++i) {
#pragma unroll
              for (int j = 0; j < N; ++j) {
                MmaStep<T>::run(c[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
              }
            }
          }
        }
      }
      store_halo<T, M, N>(p, h, w, c, first, column0 + part, group, n0, i0, j0);
    }
    __syncthreads();
    if (p.stages == 1) load(tile + gridDim.x, 0);
  }
}

template <class T, int N, int Steps>
void launch_halo_gather(Cuda& cuda, const HaloGatherPlan& plan) {
  constexpr int kM = kHaloPixels / 16;
  const dim3 grid(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.sets));
  const LaunchShape shape{grid, kHaloWarps * 32, static_cast<size_t>(plan.shared)};
  if (plan.three_by_three) {
    launch_kernel(cuda, shape, conv2d_halo_gather<T, kM, N, Steps, kHaloWarps, 3>, plan.shape);
  } else {
    launch_kernel(cuda, shape, conv2d_halo_gather<T, kM, N, Steps, kHaloWarps, 0>, plan.shape);
  }
}

template <class T>
void launch_halo_gather(Cuda& cuda, const HaloGatherPlan& plan) {
  constexpr int kLeast = static_cast<int>(sizeof(T));  // steps of up to 32 channels
  const bool few = plan.steps == kLeast;
  if constexpr (sizeof(T) == 4) {
    if (plan.width == 16) {
      return few ? launch_halo_gather<T, 2, kLeast>(cuda, plan)
                 : launch_halo_gather<T, 2, 2 * kLeast>(cuda, plan);
    }
  }
  if (plan.width == 32) {
    return few ? launch_halo_gather<T, 4, kLeast>(cuda, plan)
               : launch_halo_gather<T, 4, 2 * kLeast>(cuda, plan);
  }
  few ? launch_halo_gather<T, 8, kLeast>(cuda, plan)
      : launch_halo_gather<T, 8, 2 * kLeast>(cuda, plan);
}

}  // namespace gradus
