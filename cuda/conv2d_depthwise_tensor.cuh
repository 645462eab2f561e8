// Depthwise conv2d of 16-bit tensors on Hopper's tensor cores: see conv2d_depthwise_rows.cuh.
//
// The right-hand sides of a warp's products are 8 x 8 diagonals, one for each tap: zeros take seven
// eighths of the tensor cores' work, which is still less than memory's, and the rest of the kernel
// has neither values to widen nor multiply-adds to issue. An infinity or NaN would spread over the
// eight channels; a row that has one is added by multiply-adds instead.
#pragma once

#include "cuda/conv2d_depthwise_rows.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/wgmma.cuh"

namespace gradus {

// sum + 0 · pair of neighbouring 16-bit values: NaN from the first infinity or NaN on.
template <class T>
__device__ __forceinline__ uint32_t add_nothing(uint32_t sum, uint32_t pair) {
  uint32_t result;
  if constexpr (std::is_same_v<T, Half>) {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(pair), "r"(0), "r"(sum));
  } else {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(pair), "r"(0), "r"(sum));
  }
  return result;
}

// A warp's 8 channels of the outputs of Columns columns.
template <class T, int Columns>
struct DepthwiseProducts {
  static constexpr int kTiles = Columns / 16;
  const DepthwiseWalk& p;
  int lane, g, t, vector, c0;
  uint32_t diagonals[9];
  float bias[2] = {};                 // of the lane's columns of a product
  uint32_t pair_at, last_at, out_at;  // in a row: taps s = 0 and 1, tap 2; in a staged row
  // Sums of the output rows that a row of the input is part of, in turn.
  float c[3][kTiles][4] = {};

  __device__ __forceinline__ DepthwiseProducts(const DepthwiseWalk& problem, int block_c0)
      : p(problem), lane(threadIdx.x % 32), g(lane / 4), t(lane % 4), vector(threadIdx.x / 32) {
    c0 = block_c0 + vector * 8;
    const bool exists = c0 < p.channels;
#pragma unroll
    for (int tap = 0; tap < 9; ++tap) {
      diagonals[tap] =
          exists && t == g / 2 ? static_cast<uint32_t>(weight(g, tap).bits) << g % 2 * 16 : 0;
    }
    if (exists && p.bias != nullptr) bias[0] = p.bias[c0 + 2 * t], bias[1] = p.bias[c0 + 2 * t + 1];
    pair_at = place(lane % 16 + lane / 16);
    last_at = place(lane % Columns + 2);
    out_at = place(lane % Columns);
  }
  __device__ __forceinline__ T weight(int channel, int tap) const {
    const T* const filter =
        static_cast<const T*>(p.weights) + static_cast<int64_t>(c0 + channel) * 9;
    return filter[p.flipped ? 8 - tap : tap];
  }
  // Of a pixel's vector in a row.
  __device__ __forceinline__ uint32_t place(int pixel) const {
    return pixel * 128 + ((vector ^ (pixel & 7)) << 4);
  }

  // Adds a row of the input; c[Turn] are the sums of the output row that it begins.
  template <int Turn>
  __device__ __forceinline__ void add(uint32_t row) {
    uint32_t pairs[kTiles][4], last[4];
#pragma unroll
    for (int q = 0; q < kTiles; ++q) load_matrices(pairs[q], row + pair_at + q * 16 * 128);
    load_matrices(last, row + last_at);
    uint32_t nothing = 0;
#pragma unroll
    for (int q = 0; q < kTiles; ++q) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        nothing = add_nothing<T>(nothing, pairs[q][half]);
        nothing = add_nothing<T>(nothing, last[q * 2 + half]);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) c[Turn][q][e] = bias[e % 2];
    }
    if (__any_sync(0xFFFFFFFFu, (nothing & 0x7FFF7FFFu) != 0)) return add_plain<Turn>(row);
#pragma unroll
    for (int r = 0; r < 3; ++r) {
#pragma unroll
      for (int q = 0; q < kTiles; ++q) {
        float(&sums)[4] = c[(Turn + 3 - r) % 3][q];
        MmaStep<T>::run(sums, pairs[q], diagonals[r * 3], diagonals[r * 3 + 1]);
        run_half_step<T>(sums, last[q * 2], last[q * 2 + 1], diagonals[r * 3 + 2]);
      }
    }
  }

  // The same by multiply-adds.
  template <int Turn>
  __device__ __forceinline__ void add_plain(uint32_t row) {
    const unsigned char* const from = dynamic_shared() + (row - shared_address(dynamic_shared()));
#pragma unroll 1
    for (int s = 0; s < 3; ++s) {
      float w[3][2];
#pragma unroll
      for (int r = 0; r < 3; ++r) {
#pragma unroll
        for (int e = 0; e < 2; ++e) w[r][e] = static_cast<float>(weight(2 * t + e, r * 3 + s));
      }
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) {
        const auto x =
            load_pack<2>(reinterpret_cast<const T*>(from + place(i * 8 + g + s)) + 2 * t);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
#pragma unroll
          for (int r = 0; r < 3; ++r) {
            c[(Turn + 3 - r) % 3][i / 2][i % 2 * 2 + e] += static_cast<float>(x[e]) * w[r][e];
          }
        }
      }
    }
  }

  // Leaves the sums c[Turn] at `to` as the copy engine takes them.
  template <int Turn>
  __device__ __forceinline__ void stage(uint32_t to) const {
    uint32_t words[2 * kTiles];
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      const float* const sums = &c[Turn][i / 2][i % 2 * 2];
      words[i] = rounded_pair<T>(sums[0], sums[1]);
    }
    store_matrices(to + out_at, words);
    fence_async();
  }
};

inline constexpr int kDepthwiseTensorThreads = 256;
template <class T, int Columns>
inline constexpr int kDepthwiseTensorShared = 3 * Columns * 128 + kDepthwiseRowsShared<T, Columns>;

// math    as at DepthwiseWalk
// grid    blocks for tiles of channels (fastest), of columns and of rows, and images
// passes  one; a warp has 8 channels
// bytes   in once, two rows of it again for each tile of rows, out once
// smem    three rows of outputs on their way out, the ring
// needs   channels a multiple of 8
// order   each output is summed by one warp, in the order (r, s)
template <class T, int Columns>
__global__ void __launch_bounds__(kDepthwiseTensorThreads, 4)
    conv2d_depthwise_tensor(const __grid_constant__ DepthwiseWalk p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kStaged = Columns * 128;
  const DepthwiseWalkBlock<T, Columns> block(p);
  const uint32_t base = depthwise_rows_base();
  DepthwiseRowRing<T, Columns> ring(p, block, base + 3 * kStaged);
  ring.start();
  DepthwiseProducts<T, Columns> products(p, block.c0);
  walk_depthwise_rows(ring.in_rows(), [&](int row, auto turn) {
    constexpr int kTurn = decltype(turn)::value, kDone = (kTurn + 1) % 3;
    constexpr uint32_t kTo = kDone * kStaged;
    products.template add<kTurn>(ring.take());
    if (row >= 2) products.template stage<kDone>(base + kTo);
    // The next row goes where the one before the last was staged.
    if (threadIdx.x == 0) wait_stores<1>();
    __syncthreads();
    if (threadIdx.x == 0 && row >= 2) {
      store_image(p.out, base + kTo, block.c0, block.j0, block.i0 + row - 2, block.n);
      commit_stores();
    }
    ring.refill(row);
  });
  if (threadIdx.x == 0) wait_stores<0>();
#endif
}

}  // namespace gradus
