// First layers' weight gradient on tensor cores.
#pragma once

#include "cuda/conv2d_first_tiles.cuh"

namespace gradus {

// A warp's product of 32 channels k, the part-th of those of its block, by N * 8 positions
// (r, s, c).
template <class T, int Channels, int Parts, int N>
struct FirstWgradProduct {
  using Tiles = FirstWgradTiles<T, Channels, 32 * Parts>;
  using Dy = typename Tiles::Dy;
  static constexpr bool kF32 = sizeof(T) == 4;
  // Floats between rows of the sums: a warp's stores lie in different banks.
  static constexpr int kSumsPitch = N * 8 + (kF32 ? 2 : 8);
  static constexpr int kSums = 32 * Parts * kSumsPitch;
  float c[2][N][4] = {};
  int offsets[N];
  int part;
  int dy_at;  // the lane's first vector of dy, from the first pixel's on

  __device__ __forceinline__ FirstWgradProduct(const FirstConv& p, int of_block) : part(of_block) {
    const int lane = threadIdx.x % 32, g = lane / 4;
    const int last = p.taps_h * p.taps_w * Channels - 1;
#pragma unroll
    for (int j = 0; j < N; ++j) offsets[j] = first_offset<Channels>(p, min(j * 8 + g, last));
    dy_at = kF32 ? Dy::place(lane % 4 * 2, part * 8 + g)
                 : Dy::place(lane / 16 * 8 + lane % 8, part * 4 + lane / 8 % 2);
  }

  // Adds Tiles::kPixels pixels from `first` on; x of those from `valid` on is read at `zeros`.
  __device__ __forceinline__ void multiply(const unsigned char* dy, const T* x, const int* table,
                                           int first, int valid, int zeros) {
    const int t = threadIdx.x % 4;
    const auto windows = [&](int pixel, const T*(&of)[2]) {
      const auto at = load_pack<2>(table + pixel);
#pragma unroll
      for (int i = 0; i < 2; ++i) of[i] = x + (pixel + i < valid ? at[i] : zeros);
    };
    uint32_t a[2][4];
    const unsigned char* const from = dy + first * Dy::kPitch;
    if constexpr (kF32) {
      // The lane's terms are pixels 2t and 2t + 1, its rows of both products four neighbouring
      // channels.
      const T* of[2];
      windows(first + 2 * t, of);
#pragma unroll
      for (int pixel = 0; pixel < 2; ++pixel) {
        const int place = pixel == 0 ? dy_at : (dy_at ^ 16) + Dy::kPitch;
        const auto values = load_pack<4>(reinterpret_cast<const float*>(from + place));
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          a[e / 2][pixel * 2 + e % 2] = round_to_tf32(__float_as_uint(values[e]));
        }
      }
#pragma unroll
      for (int j = 0; j < N; ++j) {
        add(j, a, round_to_tf32(__float_as_uint(of[0][offsets[j]])),
            round_to_tf32(__float_as_uint(of[1][offsets[j]])));
      }
    } else {
      const T *low[2], *high[2];
      windows(first + 2 * t, low);
      windows(first + 8 + 2 * t, high);
      const uint32_t at = shared_address(from);
      load_matrices_transposed(a[0], at + dy_at);
      load_matrices_transposed(a[1], at + (dy_at ^ 32));
      const auto both = [&](const T* const(&of)[2], int offset) {
        return of[0][offset].bits | static_cast<uint32_t>(of[1][offset].bits) << 16;
      };
#pragma unroll
      for (int j = 0; j < N; ++j) add(j, a, both(low, offsets[j]), both(high, offsets[j]));
    }
  }

  // Leaves the sums at `to`, [channel of the block][kSumsPitch].
  __device__ __forceinline__ void leave(float* to) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = part * 32 + (kF32 ? g * 4 + i * 2 + half : i * 16 + half * 8 + g);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          store_pack(to + row * kSumsPitch + j * 8 + 2 * t,
                     Pack<float, 2>{c[i][j][half * 2], c[i][j][half * 2 + 1]});
        }
      }
    }
  }

 private:
  __device__ __forceinline__ void add(int j, const uint32_t (&a)[2][4], uint32_t low,
                                      uint32_t high) {
#pragma unroll
    for (int i = 0; i < 2; ++i) MmaStep<T>::run(c[i][j], a[i], low, high);
  }
};

// math    partials[slice][k][r, s, c] = Σ_{pixels of the slice} dy[pixel][k] · x[pixel ⊕ (r, s)][c]
//         Bias: bias_sums[slice][k] = Σ dy[pixel][k], of dy as it is stored
// grid    x: a block per slice; y: tiles of 32 * Parts channels k. The 8 warps share the channels
//         and the pixels
// passes  one
// bytes   dy once, x once and its halo
// smem    two tiles of dy and x, the tile's table of pixels, zeros; afterwards the warps' sums
// needs   k a multiple of 16 bytes, dy 16-byte aligned
// order   pixels of a warp in order, then the warps; slices are added by conv2d_reduce
template <class T, int Channels, int Parts, int N, bool Bias>
__global__ void __launch_bounds__(256, N > 2 ? 2 : 3)
    conv2d_first_wgrad(const __grid_constant__ FirstConv p) {
  using Product = FirstWgradProduct<T, Channels, Parts, N>;
  using Tiles = typename Product::Tiles;
  constexpr int kColumns = 32 * Parts, kGroups = 8 / Parts;
  const int k0 = blockIdx.y * kColumns, warp = threadIdx.x / 32, group = warp / Parts;
  Tiles tiles(p, k0);
  tiles.start();
  Product product(p, warp % Parts);
  [[maybe_unused]] BiasSums<T, kColumns> bias;
  // A tile's pixels go on being dealt where the one before ended.
  int first = group * Tiles::kPixels;
  tiles.walk([&](const unsigned char* dy, const T* x, int valid, int zeros) {
    if constexpr (Bias) bias.take(dy, valid, Tiles::Dy::place);
    for (; first < tiles.padded; first += kGroups * Tiles::kPixels) {
      product.multiply(dy, x, tiles.table, first, valid, zeros);
    }
    first -= tiles.padded;
  });

  float* const sums = reinterpret_cast<float*>(tiles.dy);
  if constexpr (Bias) {
    bias.store(sums, p.bias_sums + static_cast<int64_t>(blockIdx.x) * p.k + k0, p.k - k0);
  }
  product.leave(sums + group * Product::kSums);
  __syncthreads();
  const int positions = static_cast<int>(p.positions.divisor);
  float* const out =
      static_cast<float*>(p.out) + (static_cast<int64_t>(blockIdx.x) * p.k + k0) * positions;
#pragma unroll 2
  for (int e = threadIdx.x; e < min(kColumns, p.k - k0) * positions; e += 256) {
    const int row = static_cast<int>(p.positions.quotient(e));
    const float* const from = sums + row * Product::kSumsPitch + e - row * positions;
    float sum = from[0];
#pragma unroll
    for (int i = 1; i < kGroups; ++i) sum += from[i * Product::kSums];
    out[e] = sum;
  }
}

}  // namespace gradus
