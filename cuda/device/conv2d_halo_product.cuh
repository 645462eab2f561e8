// What a warp of the gathers over halo tiles multiplies.
#pragma once

#include "cuda/device/conv2d_halo_parts.cuh"

namespace gradus {

// One tap: adds the products of pixels, which lie `shift` bytes from a_at, and weights from b_at
// on.
template <class T, int M, int N, int Steps>
__device__ __forceinline__ void multiply_tap(float (&c)[M][N][4], const uint32_t (&a_at)[M],
                                             int shift, uint32_t b_at, int weight_pitch) {
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

// kSplitSteps of a tap in strict f32, of weights in two parts: the smaller products come first.
template <int M, int N, int Steps>
__device__ __forceinline__ void multiply_split(float (&c)[M][N][4], const uint32_t (&a_at)[M],
                                               int shift, uint32_t b_at, int weight_pitch) {
  float sums[M][N][4] = {};
#pragma unroll
  for (int step = 0; step < kSplitSteps; ++step) {
    uint32_t big[M][4], small[M][4], b[2][N / 2][4];  // parts
#pragma unroll
    for (int i = 0; i < M; ++i) {
      uint32_t a[4];
      load_matrices(a, a_at[i] + shift + step * 32);
      split_tf32(a, big[i], small[i]);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      load_matrices(b[j % 2][j / 2],
                    b_at + j % 2 * Steps * 32 + j / 2 * 16 * weight_pitch + step * 32);
    }
#pragma unroll
    for (int product = 0; product < 3; ++product) {
#pragma unroll
      for (int i = 0; i < M; ++i) {
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const uint32_t(&words)[4] = b[product == 1][j / 2];
          MmaStep<float>::run(sums[i][j], product == 0 ? small[i] : big[i], words[j % 2 * 2],
                              words[j % 2 * 2 + 1]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < M; ++i) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) c[i][j][e] += sums[i][j][e];
    }
  }
}

// A warp's product of M * 16 pixels, which begin where `sources` says in the tile, and the N * 8
// output channels whose weights begin at `weights_at`.
template <class T, int M, int N, int Steps, int Taps, bool Split>
__device__ __forceinline__ void multiply_halo(const HaloGather& p, const HaloAxis& h,
                                              const HaloAxis& w, float (&c)[M][N][4],
                                              uint32_t tile_at, const int* sources,
                                              uint32_t weights_at, int weight_pitch) {
  constexpr int kPitch = Steps * 32 + 16;
  const int lane = threadIdx.x % 32;
  uint32_t a_at[M];
#pragma unroll
  for (int i = 0; i < M; ++i) a_at[i] = tile_at + sources[i * 16 + lane % 16] + lane / 16 * 16;
  uint32_t b_at = weights_at + (lane / 16 * 8 + lane % 8) * weight_pitch + lane / 8 % 2 * 16;
#pragma unroll 1
  for (int r = 0; r < (Taps > 0 ? Taps : h.taps); ++r) {
#pragma unroll(Taps > 0 ? Taps : 1)
    for (int s = 0; s < (Taps > 0 ? Taps : w.taps); ++s, b_at += kHaloWeightBytes<Steps, Split>) {
      const int shift = (h.offset[r] * p.tile.halo_columns + w.offset[s]) * kPitch;
      if constexpr (Split) {
#pragma unroll
        for (int step = 0; step < Steps; step += kSplitSteps) {
          multiply_split<M, N, Steps>(c, a_at, shift + step * 32, b_at + step * 32, weight_pitch);
        }
      } else {
        multiply_tap<T, M, N, Steps>(c, a_at, shift, b_at, weight_pitch);
      }
    }
  }
}

}  // namespace gradus
