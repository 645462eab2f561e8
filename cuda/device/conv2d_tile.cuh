// What one block multiplies: a tile of kRows pixels by kColumns output channels, over 128-byte
// slices of both operands in shared memory. Two ways, one interface:
//   multiply(a, b)        adds one slice of a · bᵀ; rows swizzled as in conv2d_gather.cuh
//   put(staging, pitch)   writes the accumulators to shared memory, row by row
#pragma once

#include "core/dtype.h"
#include "cuda/device/conv2d_gather.cuh"
#include "cuda/device/mma.cuh"

namespace gradus {

// Tensor cores: T is float (rounded to TF32), Half or BFloat16. Each warp has WarpRows x
// WarpColumns.
template <class T, int Rows, int Columns, int WarpRows, int WarpColumns>
struct TensorCoreTile {
  static constexpr int kRows = Rows, kColumns = Columns;
  static constexpr int kThreads = 32 * (Rows / WarpRows) * (Columns / WarpColumns);
  static constexpr int kM = WarpRows / 16, kN = WarpColumns / 8;

  float c[kM][kN][4] = {};

  static __device__ __forceinline__ int first_row() {
    return threadIdx.x / 32 % (Rows / WarpRows) * WarpRows;
  }
  static __device__ __forceinline__ int first_column() {
    return threadIdx.x / 32 / (Rows / WarpRows) * WarpColumns;
  }

  __device__ __forceinline__ void multiply(const unsigned char* a_tile,
                                           const unsigned char* b_tile) {
    const int lane = threadIdx.x % 32;
    const uint32_t a_at = shared_address(a_tile), b_at = shared_address(b_tile);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      uint32_t a[kM][4], b[kN / 2][4];
#pragma unroll
      for (int i = 0; i < kM; ++i) {
        const int row = first_row() + i * 16 + lane % 16;
        load_matrices(a[i], a_at + swizzled(row, 2 * step + lane / 16));
        if constexpr (sizeof(T) == 4) {
          for (uint32_t& word : a[i]) word = round_to_tf32(word);
        }
      }
#pragma unroll
      for (int j = 0; j < kN / 2; ++j) {
        const int row = first_column() + j * 16 + lane / 16 * 8 + lane % 8;
        load_matrices(b[j], b_at + swizzled(row, 2 * step + lane / 8 % 2));
      }
#pragma unroll
      for (int i = 0; i < kM; ++i) {
#pragma unroll
        for (int j = 0; j < kN; ++j) {
          MmaStep<T>::run(c[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
  }

  __device__ __forceinline__ void put(float* staging, int pitch) const {
    const int lane = threadIdx.x % 32;
    float* first = staging + (first_row() + lane / 4) * pitch + first_column() + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        float* at = first + i * 16 * pitch + j * 8;
        *reinterpret_cast<float2*>(at) = {c[i][j][0], c[i][j][1]};
        *reinterpret_cast<float2*>(at + 8 * pitch) = {c[i][j][2], c[i][j][3]};
      }
    }
  }
};

// Plain multiply-adds in T (float or double). Each thread has ThreadRows x ThreadColumns, its rows
// and columns interleaved with those of the other threads.
template <class T, int Rows, int Columns, int ThreadRows, int ThreadColumns>
struct FmaTile {
  static constexpr int kRows = Rows, kColumns = Columns;
  static constexpr int kRowStep = Rows / ThreadRows, kColumnStep = Columns / ThreadColumns;
  static constexpr int kThreads = kRowStep * kColumnStep;
  using Vector = Pack<T, kFullPack<T>>;

  T c[ThreadRows][ThreadColumns] = {};

  static __device__ __forceinline__ int first_row() { return threadIdx.x % kRowStep; }
  static __device__ __forceinline__ int first_column() { return threadIdx.x / kRowStep; }

  __device__ __forceinline__ void multiply(const unsigned char* a_tile,
                                           const unsigned char* b_tile) {
#pragma unroll 2
    for (int v = 0; v < 8; ++v) {
      Vector a[ThreadRows];
#pragma unroll
      for (int i = 0; i < ThreadRows; ++i) {
        const int row = first_row() + i * kRowStep;
        a[i] = *reinterpret_cast<const Vector*>(a_tile + swizzled(row, v));
      }
#pragma unroll
      for (int j = 0; j < ThreadColumns; ++j) {
        const int row = first_column() + j * kColumnStep;
        const Vector b = *reinterpret_cast<const Vector*>(b_tile + swizzled(row, v));
#pragma unroll
        for (int e = 0; e < kFullPack<T>; ++e) {
#pragma unroll
          for (int i = 0; i < ThreadRows; ++i) c[i][j] += a[i][e] * b[e];
        }
      }
    }
  }

  __device__ __forceinline__ void put(T* staging, int pitch) const {
#pragma unroll
    for (int i = 0; i < ThreadRows; ++i) {
#pragma unroll
      for (int j = 0; j < ThreadColumns; ++j) {
        staging[(first_row() + i * kRowStep) * pitch + first_column() + j * kColumnStep] = c[i][j];
      }
    }
  }
};

}  // namespace gradus
