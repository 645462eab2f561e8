// What one block of the weight gradient multiplies: kRows output channels by kColumns positions
// (r, s, channel), over kDepth pixels. Both operands lie in shared memory pixel by pixel, so they
// are read transposed:
//   multiply(a, b)           c[row][column] += Σ_pixel a[pixel][row] · b[pixel][column]
//   each(f)                  f(row, column, pair of sums in neighbouring columns)
#pragma once

#include "core/dtype.h"
#include "cuda/device/conv2d_gather.cuh"
#include "cuda/device/mma.cuh"

namespace gradus {

// Elements that follow each row in shared memory: eight for 4- and 2-byte types move the rows that
// a warp reads together to different banks.
template <class T>
inline constexpr int kRowPad = sizeof(T) == 8 ? 2 : 8;

// Tensor cores; each warp has all rows and WarpColumns columns.
template <class T, int Rows, int Columns, int WarpColumns, int Depth>
struct WgradTensorCoreTile {
  static constexpr int kRows = Rows, kColumns = Columns, kDepth = Depth;
  static constexpr int kThreads = 32 * (Columns / WarpColumns);
  static constexpr int kM = Rows / 16, kN = WarpColumns / 8;
  static constexpr int kStep = 32 / sizeof(T);  // pixels per matrix instruction
  static constexpr int kPitchA = Rows + kRowPad<T>, kPitchB = Columns + kRowPad<T>;

  float c[kM][kN][4] = {};

  static __device__ __forceinline__ int first_column() { return threadIdx.x / 32 * WarpColumns; }

  // 32-bit operands: one word per load; lane 4·g + t takes pixel t, row g.
  static __device__ __forceinline__ void load(uint32_t (&a)[kM][4], uint32_t (&b)[kN][2],
                                              const float* a_tile, const float* b_tile) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    a_tile += t * kPitchA + g;
    b_tile += t * kPitchB + first_column() + g;
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float value = a_tile[e / 2 * 4 * kPitchA + i * 16 + e % 2 * 8];
        a[i][e] = round_to_tf32(__float_as_uint(value));
      }
    }
#pragma unroll
    for (int j = 0; j < kN; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        b[j][e] = round_to_tf32(__float_as_uint(b_tile[e * 4 * kPitchB + j * 8]));
      }
    }
  }

  // 16-bit operands: matrix loads that transpose.
  template <class U>
  static __device__ __forceinline__ void load(uint32_t (&a)[kM][4], uint32_t (&b)[kN][2],
                                              const U* a_tile, const U* b_tile) {
    const int lane = threadIdx.x % 32;
    const int a_pixel = lane / 16 * 8 + lane % 8, b_pixel = lane / 8 % 2 * 8 + lane % 8;
    const uint32_t a_at = shared_address(a_tile + a_pixel * kPitchA + lane / 8 % 2 * 8);
    const uint32_t b_at =
        shared_address(b_tile + b_pixel * kPitchB + first_column() + lane / 16 * 8);
#pragma unroll
    for (int i = 0; i < kM; ++i) load_matrices_transposed(a[i], a_at + i * 32);
#pragma unroll
    for (int j = 0; j < kN; j += 2) {
      uint32_t words[4];
      load_matrices_transposed(words, b_at + j * 16);
      b[j][0] = words[0], b[j][1] = words[1];
      b[j + 1][0] = words[2], b[j + 1][1] = words[3];
    }
  }

  __device__ __forceinline__ void multiply(const T* a_tile, const T* b_tile) {
#pragma unroll
    for (int step = 0; step < Depth / kStep; ++step) {
      uint32_t a[kM][4], b[kN][2];
      load(a, b, a_tile + step * kStep * kPitchA, b_tile + step * kStep * kPitchB);
#pragma unroll
      for (int i = 0; i < kM; ++i) {
#pragma unroll
        for (int j = 0; j < kN; ++j) MmaStep<T>::run(c[i][j], a[i], b[j][0], b[j][1]);
      }
    }
  }

  template <class F>
  __device__ __forceinline__ void each(const F& f) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        const int column = first_column() + j * 8 + 2 * t;
        f(i * 16 + g, column, c[i][j][0], c[i][j][1]);
        f(i * 16 + g + 8, column, c[i][j][2], c[i][j][3]);
      }
    }
  }
};

// Plain multiply-adds in T; each thread has 4 neighbouring rows and ThreadColumns columns in
// vectors of 16 bytes that are interleaved with those of the other threads.
template <class T, int Rows, int Columns, int ThreadColumns, int Depth>
struct WgradFmaTile {
  static constexpr int kRows = Rows, kColumns = Columns, kDepth = Depth;
  static constexpr int kAcross = Rows / 4, kAlong = Columns / ThreadColumns;
  static constexpr int kThreads = kAcross * kAlong;
  static constexpr int kPitchA = Rows + kRowPad<T>, kPitchB = Columns + kRowPad<T>;
  static constexpr int kV = kFullPack<T>;
  using Vector = Pack<T, kV>;

  T c[4][ThreadColumns] = {};

  __device__ __forceinline__ void multiply(const T* a_tile, const T* b_tile) {
    const T* a_at = a_tile + threadIdx.x % kAcross * 4;
    const T* b_at = b_tile + threadIdx.x / kAcross * kV;
#pragma unroll 2
    for (int pixel = 0; pixel < Depth; ++pixel) {
      Vector a[4 / kV];
#pragma unroll
      for (int i = 0; i < 4 / kV; ++i) {
        a[i] = *reinterpret_cast<const Vector*>(a_at + pixel * kPitchA + i * kV);
      }
#pragma unroll
      for (int j = 0; j < ThreadColumns / kV; ++j) {
        const auto b = *reinterpret_cast<const Vector*>(b_at + pixel * kPitchB + j * kAlong * kV);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int e = 0; e < kV; ++e) c[i][j * kV + e] += a[i / kV][i % kV] * b[e];
        }
      }
    }
  }

  template <class F>
  __device__ __forceinline__ void each(const F& f) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < ThreadColumns; j += 2) {
        const int vector = threadIdx.x / kAcross + j / kV * kAlong;
        f(threadIdx.x % kAcross * 4 + i, vector * kV + j % kV, c[i][j], c[i][j + 1]);
      }
    }
  }
};

}  // namespace gradus
