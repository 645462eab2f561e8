// The gradient of a first layer's input on tensor cores: dx has a few channels, dy many. 3 x 3
// filters without stride.
//
// The taps are columns of one matrix product z of dy and the weights, which takes each pixel of dy
// once; a pixel of dx adds the nine of its neighbours up.
#pragma once

#include "cuda/conv2d_first_input.cuh"
#include "cuda/device/split_tf32.cuh"

namespace gradus {

// z[m][r, s, c] = Σ_k dy[m][k] · weights[k][c, r, s]
// dx[n, u, v, c] = Σ_{r, s} z[n, u + pad_h - r, v + pad_w - s][r, s, c]
struct FirstInputTensor : FirstInputGrad {
  int rows = 1;          // of dy at a time, at least 2
  int segment_rows = 1;  // of dx that a block has
  int z_bytes = 0;       // of shared memory; also holds the weights at first
  FastDivisor segments;  // of an image
  FastDivisor dy_width, dx_width;
};

// Floats of a pixel of z: whole pairs.
template <int Channels>
inline constexpr int kFirstTapPitch = (9 * Channels + 1) / 2 * 2;

// The weights as a warp multiplies them; column r, s, c of z. Split: their big parts, while the
// small ones stay in shared memory, where all warps find them.
template <class T, int Channels, int Steps, bool Split>
struct FirstTapWeights {
  static constexpr int kColumns = 9 * Channels, N = (kColumns + 7) / 8;
  static constexpr int kPerWord = 4 / static_cast<int>(sizeof(T)), kDepth = Steps * 8 * kPerWord;
  static constexpr int kSmallBytes = Split ? Steps * N * 32 * static_cast<int>(sizeof(uint2)) : 0;
  uint32_t words[Steps][N][2];
  uint2* small;  // of the lane, every 32nd: [Steps][N]

  // Through `shared`, since what a lane takes lies apart in global memory; zeros beyond k.
  __device__ __forceinline__ FirstTapWeights(const FirstInputTensor& p, T* shared,
                                             unsigned char* small_parts)
      : small(reinterpret_cast<uint2*>(small_parts) + threadIdx.x % 32) {
    for (int e = threadIdx.x; e < kDepth * kColumns; e += blockDim.x) {
      shared[e] = e < p.k * kColumns ? static_cast<const T*>(p.weights)[e] : T(0.0f);
    }
    __syncthreads();
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const int column = min(j * 8 + g, kColumns - 1), tap = column / Channels;
      const T* const at = shared + t * kPerWord * kColumns + (column - tap * Channels) * 9 + tap;
#pragma unroll
      for (int i = 0; i < Steps * 2; ++i) {
        const T* const from = at + i * 4 * kPerWord * kColumns;
        uint32_t& word = words[i / 2][j][i % 2];
        if constexpr (sizeof(T) == 4) {
          word = __float_as_uint(*from);
        } else {
          word = from[0].bits | static_cast<uint32_t>(from[kColumns].bits) << 16;
        }
        if (j * 8 + g >= kColumns) word = 0;
        if constexpr (sizeof(T) == 4 && !Split) word = round_to_tf32(word);
      }
    }
    if constexpr (Split) split();
    __syncthreads();
  }

  __device__ __forceinline__ void split() {
#pragma unroll
    for (int step = 0; step < Steps; ++step) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        uint32_t(&both)[2] = words[step][j];
        const SplitFloat first = split_tf32(__uint_as_float(both[0]));
        const SplitFloat second = split_tf32(__uint_as_float(both[1]));
        both[0] = __float_as_uint(first.big), both[1] = __float_as_uint(second.big);
        if (threadIdx.x < 32) {
          small[(step * N + j) * 32] = {__float_as_uint(first.small),
                                        __float_as_uint(second.small)};
        }
      }
    }
  }

  // Adds the products of 16 pixels, which begin at `at`.
  __device__ __forceinline__ void multiply(float (&c)[N][4], uint32_t at) const {
#pragma unroll
    for (int step = 0; step < Steps; ++step) {
      uint32_t a[4];
      load_matrices(a, at + step * 32);
      if constexpr (sizeof(T) == 4) {
        for (uint32_t& word : a) word = round_to_tf32(word);
      }
#pragma unroll
      for (int j = 0; j < N; ++j) MmaStep<T>::run(c[j], a, words[step][j][0], words[step][j][1]);
    }
  }

  // The same of kSplitSteps in two parts, the smaller products first.
  __device__ __forceinline__ void multiply_split(float (&c)[N][4], uint32_t at, int step0) const {
    float sums[N][4] = {};
#pragma unroll
    for (int step = step0; step < step0 + kSplitSteps; ++step) {
      uint32_t a[4], a_big[4], a_small[4];
      load_matrices(a, at + step * 32);
      split_tf32(a, a_big, a_small);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        MmaStep<T>::run(sums[j], a_small, words[step][j][0], words[step][j][1]);
      }
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const uint2 w = small[(step * N + j) * 32];
        MmaStep<T>::run(sums[j], a_big, w.x, w.y);
      }
#pragma unroll
      for (int j = 0; j < N; ++j) {
        MmaStep<T>::run(sums[j], a_big, words[step][j][0], words[step][j][1]);
      }
    }
#pragma unroll
    for (int e = 0; e < N * 4; ++e) c[e / 4][e % 4] += sums[e / 4][e % 4];
  }
};

// Starts copying the pixels first .. first + pixels of an image of dy, zeros where there are none.
template <class T, int Steps>
__device__ __forceinline__ void copy_tap_rows(const FirstInputTensor& p, uint32_t to,
                                              const T* image, int first, int pixels) {
  constexpr int kVectors = Steps * 2, kStep = 256 / kVectors, kPitch = Steps * 32 + 16;
  const int vector = threadIdx.x % kVectors, pixel0 = threadIdx.x / kVectors;
  const int k = vector * kFullPack<T>;
  const unsigned area = k < p.k ? p.dy_h * p.dy_w : 0;
  const T* from = image + static_cast<int64_t>(first + pixel0) * p.k + k;
  to += pixel0 * kPitch + vector * 16;
#pragma unroll 4
  for (int pixel = pixel0; pixel < pixels; pixel += kStep) {
    const bool valid = static_cast<unsigned>(first + pixel) < area;
    copy_async_streamed(to, valid ? from : image, valid);
    to += kStep * kPitch, from += static_cast<int64_t>(kStep) * p.k;
  }
}

// z of `pixels` pixels, whose tile is at `tile`; a warp has every eighth 16 of them. Rows of z have
// two pixels more at either end.
template <class T, int Channels, int Steps, bool Split>
__device__ __forceinline__ void multiply_taps(
    const FirstInputTensor& p, const FirstTapWeights<T, Channels, Steps, Split>& weights, float* z,
    uint32_t tile, int pixels) {
  constexpr int kPitch = Steps * 32 + 16, N = FirstTapWeights<T, Channels, Steps, Split>::N;
  constexpr int kZ = kFirstTapPitch<Channels>;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  for (int first = threadIdx.x / 32 * 16; first < pixels; first += 128) {
    const uint32_t at = tile + (first + lane % 16) * kPitch + lane / 16 * 16;
    float c[N][4] = {};
    if constexpr (Split) {
#pragma unroll
      for (int step = 0; step < Steps; step += kSplitSteps) weights.multiply_split(c, at, step);
    } else {
      weights.multiply(c, at);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int pixel = first + half * 8 + g;
      if (pixel >= pixels) continue;
      const int row = static_cast<int>(p.dy_width.quotient(pixel));
      float* const to = z + (pixel + row * 4 + 2) * kZ + 2 * t;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if (j * 8 + 2 * t < kZ) {
          store_pack(to + j * 8, Pack<float, 2>{c[j][half * 2], c[j][half * 2 + 1]});
        }
      }
    }
  }
}

// Rows lo .. hi of dx of an image: row i of dy has its z at slot i - `first` of `now`, and before
// that at those from p.rows on of `before`.
template <class T, int Channels>
__device__ __forceinline__ void add_taps(const FirstInputTensor& p, T* dx, const float* now,
                                         const float* before, int first, int lo, int hi) {
  constexpr int kZ = kFirstTapPitch<Channels>;
  const int pitch = (p.dy_w + 4) * kZ, count = (hi - lo) * p.dx_w * Channels;
  dx += static_cast<int64_t>(lo) * p.dx_w * Channels;
  for (int e = threadIdx.x; e < count; e += blockDim.x) {
    const int pixel = e / Channels, c = e - pixel * Channels;
    const int row = static_cast<int>(p.dx_width.quotient(pixel)), v = pixel - row * p.dx_w;
    float sum = 0;
#pragma unroll
    for (int r = 0; r < 3; ++r) {
      const int slot = lo + row + p.pad_h - r - first;
      const float* at = (slot >= 0 ? now : before + p.rows * pitch) + slot * pitch +
                        (v + p.pad_w + 2) * kZ + r * 3 * Channels + c;
#pragma unroll
      for (int s = 0; s < 3; ++s) sum += at[s * (Channels - kZ)];
    }
    dx[e] = static_cast<T>(sum);
  }
}

// math    as at FirstInputTensor
// grid    blocks for segments of rows of an image of dx; a block walks down the rows of dy
// passes  one
// bytes   dy once, dx once
// smem    two tiles of dy, z of the last two; Split: the small parts of the weights
// needs   k a multiple of 16 bytes and at most Steps * 32 bytes, dy 16-byte aligned
// order   a z is summed by one warp in the order of k, an output by one thread in the order (r, s)
// Split   strict f32: operands in two parts, whose three larger products are added
template <class T, int Channels, int Steps, bool Split>
__global__ void __launch_bounds__(256, 2)
    conv2d_first_input_tensor(const __grid_constant__ FirstInputTensor p) {
  constexpr int kPitch = Steps * 32 + 16;
  const int n = static_cast<int>(p.segments.quotient(blockIdx.x));
  const int segment = static_cast<int>(blockIdx.x) - n * static_cast<int>(p.segments.divisor);
  const int u0 = segment * p.segment_rows, u1 = min(u0 + p.segment_rows, p.dx_h);
  const int begin = u0 + p.pad_h - 2, end = u1 + p.pad_h;  // rows of dy
  const int pixels = p.rows * p.dy_w, tile_bytes = (pixels + 15) / 16 * 16 * kPitch;
  using Weights = FirstTapWeights<T, Channels, Steps, Split>;
  float* const z = reinterpret_cast<float*>(dynamic_shared() + Weights::kSmallBytes);
  const uint32_t tiles = shared_address(z) + p.z_bytes;
  const T* const dy = static_cast<const T*>(p.dy) + int64_t{n} * p.dy_h * p.dy_w * p.k;
  T* const dx = static_cast<T*>(p.dx) + int64_t{n} * p.dx_h * p.dx_w * Channels;
  const auto copy = [&](int row, int stage) {
    if (row < end) {
      copy_tap_rows<T, Steps>(p, tiles + stage * tile_bytes, dy, row * p.dy_w, pixels);
    }
    commit_copies();
  };
  copy(begin, 0);
  copy(begin + p.rows, 1);
  const Weights weights(p, reinterpret_cast<T*>(z), dynamic_shared());
  const int z_half = p.rows * (p.dy_w + 4) * kFirstTapPitch<Channels>;
  for (int e = threadIdx.x; e < 2 * z_half; e += blockDim.x) z[e] = 0;  // the ends of rows
  for (int row = begin, turn = 0; row < end; row += p.rows, turn ^= 1) {
    wait_copies<1>();
    __syncthreads();
    float *const now = z + turn * z_half, *const before = z + (1 - turn) * z_half;
    multiply_taps(p, weights, now, tiles + turn * tile_bytes, pixels);
    __syncthreads();
    copy(row + 2 * p.rows, turn);
    add_taps<T, Channels>(p, dx, now, before, row, max(u0, row - p.pad_h),
                          min(u1, row + p.rows - p.pad_h));
  }
}

}  // namespace gradus
