// First layers' weight gradient on tensor cores.
#pragma once

#include "cuda/conv2d_first_tensor.cuh"
#include "cuda/launch_kernel.cuh"

namespace gradus {

// Bytes between pixels of dy in shared memory, so that a warp's reads lie in different banks, and
// floats between rows of the warps' sums.
template <class T, int M>
inline constexpr int first_dy_pitch = M * 16 * static_cast<int>(sizeof(T)) +
                                      (sizeof(T) == 4 ? 32 : 16);
template <int N>
inline constexpr int kFirstSumsPitch = N * 8 + 4;

// A thread's share of the copies of dy, [pixel][k0 ...], to shared memory: a vector of every so
// many pixels.
template <class T, int M>
struct FirstUpstream {
  static constexpr int kPerPixel = M * 16 / kFullPack<T>, kStep = 256 / kPerPixel;
  static constexpr int kPitch = first_dy_pitch<T, M>;
  const FirstConv& p;
  int pixel0, k;
  uint32_t to;

  __device__ __forceinline__ FirstUpstream(const FirstConv& problem, int k0, uint32_t tiles_at)
      : p(problem),
        pixel0(threadIdx.x / kPerPixel),
        k(k0 + threadIdx.x % kPerPixel * kFullPack<T>),
        to(tiles_at + pixel0 * kPitch + threadIdx.x % kPerPixel * 16) {}

  // Zeros beyond the pixels that exist, up to `padded`.
  __device__ __forceinline__ void copy(int tile, int offset, int padded) const {
    const FirstTile at(p, tile);
    const T* const dy = static_cast<const T*>(p.dy);
    const T* from = dy + (at.pixel(p) + pixel0) * p.k + k;
    const int valid = k < p.k ? at.valid : 0;
    uint32_t place = to + offset;
#pragma unroll 4
    for (int pixel = pixel0; pixel < padded; pixel += kStep) {
      copy_async_streamed(place, pixel < valid ? from : dy, pixel < valid);
      place += kStep * kPitch, from += static_cast<int64_t>(kStep) * p.k;
    }
  }
};

// The tiles of a block, every gridDim.x-th one, two at a time in shared memory: dy of M * 16
// channels and x, and where in x each pixel's window begins.
template <class T, int Channels, int M>
struct FirstWgradTiles {
  static constexpr int kPixels = 32 / static_cast<int>(sizeof(T));  // dy is padded to multiples
  static constexpr int kPitch = first_dy_pitch<T, M>;
  const FirstConv& p;
  int padded, dy_size, x_size;
  unsigned char* dy;
  int* table;
  T* x;
  FirstUpstream<T, M> upstream;
  FirstInput<T, Channels> input;

  __device__ __forceinline__ FirstWgradTiles(const FirstConv& problem, int k0)
      : p(problem),
        padded((p.tile.rows * p.out_w + kPixels - 1) / kPixels * kPixels),
        dy_size(padded * kPitch),
        x_size(p.tile.halo_rows * p.tile.halo_columns * Channels),
        dy(dynamic_shared()),
        table(reinterpret_cast<int*>(dy + 2 * dy_size)),
        x(reinterpret_cast<T*>(table + padded)),
        upstream(p, k0, shared_address(dy)),
        input(p) {}

  // As soon as may be: what the kernel prepares meanwhile follows.
  __device__ __forceinline__ void start() {
    wait_for_previous_kernel();
    start_next_kernel();
    upstream.copy(blockIdx.x, 0, padded);
    commit_copies();
    input.start(blockIdx.x);
    fill_first_table<Channels>(p, table, padded);
  }
  // add(dy, x, pixels that exist) for each tile.
  template <class Add>
  __device__ __forceinline__ void walk(const Add& add) {
    const int step = static_cast<int>(gridDim.x);
    int tile = blockIdx.x;
    input.finish(tile, x);
    for (int turn = 0; tile < p.tiles; tile += step, turn ^= 1) {
      if (tile + step < p.tiles) {
        upstream.copy(tile + step, (1 - turn) * dy_size, padded);
        input.start(tile + step);
      }
      commit_copies();
      wait_copies<1>();
      __syncthreads();
      add(dy + turn * dy_size, x + turn * x_size, FirstTile(p, tile).valid);
      input.finish(tile + step, x + (1 - turn) * x_size);
      __syncthreads();
    }
  }
};

// A warp's product of M * 16 channels k by N * 8 positions (r, s, c).
template <class T, int Channels, int M, int N>
struct FirstWgradProduct {
  static constexpr int kPixels = 32 / static_cast<int>(sizeof(T)), kMine = kPixels / 4;
  static constexpr int kPitch = first_dy_pitch<T, M>;
  float c[M][N][4] = {};
  int offsets[N];

  __device__ __forceinline__ explicit FirstWgradProduct(const FirstConv& p) {
    const int g = threadIdx.x % 32 / 4, last = p.taps_h * p.taps_w * Channels - 1;
#pragma unroll
    for (int j = 0; j < N; ++j) offsets[j] = first_offset<Channels>(p, min(j * 8 + g, last));
  }

  // Adds kPixels pixels from `first` on; x of those from `valid` on is 0.
  __device__ __forceinline__ void multiply(const unsigned char* y, const T* x, const int* table,
                                           int first, int valid) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int at[kMine];  // where the windows of the lane's pixels begin
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int pixel = first + (sizeof(T) == 4 ? t + 4 * i : 2 * t + i % 2 + i / 2 * 8);
      at[i] = pixel < valid ? table[pixel] : -1;
    }
    const auto value = [&](int i, int j) {
      if constexpr (sizeof(T) == 4) {  // loaded in either case: a branch would wait for each load
        const T loaded = x[max(at[i], 0) + offsets[j]];
        return at[i] >= 0 ? loaded : T(0.0f);
      } else {
        return at[i] >= 0 ? x[at[i] + offsets[j]] : T(0.0f);
      }
    };
    uint32_t a[M][4];
    if constexpr (sizeof(T) == 4) {
      const float* const a_at = reinterpret_cast<const float*>(y + (first + t) * kPitch) + g;
#pragma unroll
      for (int i = 0; i < M; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          a[i][e] = round_to_tf32(__float_as_uint(a_at[e / 2 * kPitch + i * 16 + e % 2 * 8]));
        }
      }
    } else {
      const uint32_t a_at =
          shared_address(y) + (first + lane / 16 * 8 + lane % 8) * kPitch + lane / 8 % 2 * 16;
#pragma unroll
      for (int i = 0; i < M; ++i) load_matrices_transposed(a[i], a_at + i * 32);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      uint32_t b[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if constexpr (sizeof(T) == 4) {
          b[e] = round_to_tf32(__float_as_uint(value(e, j)));
        } else {
          b[e] = value(2 * e, j).bits | static_cast<uint32_t>(value(2 * e + 1, j).bits) << 16;
        }
      }
#pragma unroll
      for (int i = 0; i < M; ++i) MmaStep<T>::run(c[i][j], a[i], b[0], b[1]);
    }
  }

  // Leaves the warp's sums at `to`, rows of kFirstSumsPitch<N>.
  __device__ __forceinline__ void leave(float* to) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < M; ++i) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          store_pack(to + (i * 16 + half * 8 + g) * kFirstSumsPitch<N> + j * 8 + 2 * t,
                     Pack<float, 2>{c[i][j][half * 2], c[i][j][half * 2 + 1]});
        }
      }
    }
  }
};

// math    partials[slice][k][r, s, c] = Σ_{pixels of the slice} dy[pixel][k] · x[pixel ⊕ (r, s)][c]
//         Bias: bias_sums[slice][k] = Σ dy[pixel][k], of dy as it is stored
// grid    x: a block per slice; y: tiles of M * 16 channels k. The 8 warps share the pixels
// passes  one
// bytes   dy once, x once and its halo
// smem    two tiles of dy and x, the tile's table of pixels; afterwards the warps' sums
// needs   k a multiple of 16 bytes, dy 16-byte aligned
// order   pixels of a warp in order, then the warps; slices are added by conv2d_reduce
template <class T, int Channels, int M, int N, bool Bias>
__global__ void __launch_bounds__(256, M* N > 8 ? 2 : 3)
    conv2d_first_wgrad(const __grid_constant__ FirstConv p) {
  using Tiles = FirstWgradTiles<T, Channels, M>;
  constexpr int kPixels = Tiles::kPixels, kSumsPitch = kFirstSumsPitch<N>;
  const int k0 = blockIdx.y * M * 16, warp = threadIdx.x / 32;
  Tiles tiles(p, k0);
  tiles.start();
  FirstWgradProduct<T, Channels, M, N> product(p);
  [[maybe_unused]] ChannelSums<T, M * 16> bias;
  tiles.walk([&](const unsigned char* dy, const T* x, int valid) {
    if constexpr (Bias) bias.take(dy, Tiles::kPitch, valid);
    for (int first = warp * kPixels; first < valid; first += 8 * kPixels) {
      product.multiply(dy, x, tiles.table, first, valid);
    }
  });

  float* const sums = reinterpret_cast<float*>(tiles.dy);
  if constexpr (Bias) {
    bias.store(sums, p.bias_sums + static_cast<int64_t>(blockIdx.x) * p.k + k0, p.k - k0);
  }
  product.leave(sums + warp * M * 16 * kSumsPitch);
  __syncthreads();
  const int positions = static_cast<int>(p.positions.divisor);
  float* const out =
      static_cast<float*>(p.out) + (static_cast<int64_t>(blockIdx.x) * p.k + k0) * positions;
  for (int e = threadIdx.x; e < min(M * 16, p.k - k0) * positions; e += 256) {
    const int row = static_cast<int>(p.positions.quotient(e));
    const float* const from = sums + row * kSumsPitch + e - row * positions;
    float sum = from[0];
#pragma unroll
    for (int w = 1; w < 8; ++w) sum += from[w * M * 16 * kSumsPitch];
    out[e] = sum;
  }
}

}  // namespace gradus
