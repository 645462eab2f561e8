// Depthwise conv2d of channels-last tensors: one filter per channel, three directions.
#pragma once

#include "core/dtype.h"
#include "cuda/device/quotient.cuh"
#include "cuda/device/shared.cuh"
#include "cuda/device/vector.cuh"

namespace gradus {

// out[n, i, j, c] = bias[c] + Σ_{r, s} in[n, i · Stride + r - pad_h, ...] · weights[c][r, s]; the
// gradient of the input with stride 1 is the same with the filter turned round.
struct Depthwise {
  const void* in = nullptr;
  const void* weights = nullptr;  // [channels, R, S]
  const void* bias = nullptr;     // [channels], acc; or null
  void* out = nullptr;
  int channels = 0;
  int in_h = 0, in_w = 0, out_h = 0, out_w = 0;
  int pad_h = 0, pad_w = 0;
  bool flipped = false;
  FastDivisor packs, strips, row_groups;  // of channels, of columns, of rows
  int64_t items = 0;                      // packs · strips · row groups · images
  int rows = 1;                           // of a thread
};

// Weight gradient: partials[slice][c][r, s] = Σ dy[m][c] · x[m ⊕ (r, s)][c]
struct DepthwiseWgrad {
  const void* x = nullptr;
  const void* dy = nullptr;
  void* partials = nullptr;  // [slices, channels, R · S], acc
  int channels = 0;
  int in_h = 0, in_w = 0, out_h = 0, out_w = 0;
  int pad_h = 0, pad_w = 0;
  int lanes = 1;  // packs of channels of a block
  FastDivisor strips, rows;
  int64_t items = 0, items_per_slice = 0;  // strips of all rows of all images
};

template <class T>
__device__ __forceinline__ void widen(const Pack<T, kFullPack<T>>& from,
                                      acc_t<T> (&to)[kFullPack<T>]) {
#pragma unroll
  for (int e = 0; e < kFullPack<T>; ++e) to[e] = static_cast<acc_t<T>>(from[e]);
}

// math    as at Depthwise
// grid    a thread per pack of channels, Strip neighbouring columns and p.rows rows
// bytes   in (again R · (Strip + S - 1) / Strip times, from caches) and out once
// smem    the weights of the block's channels, in acc
// order   each output is summed by one thread, in the order (r, s)
template <class T, int R, int S, int Stride, int Strip>
__global__ void __launch_bounds__(256) conv2d_depthwise(const __grid_constant__ Depthwise p) {
  using Acc = acc_t<T>;
  constexpr int kV = kFullPack<T>, kColumns = (Strip - 1) * Stride + S;
  Acc* const weights = reinterpret_cast<Acc*>(dynamic_shared());  // [tap][channel]
  const int packs = static_cast<int>(p.packs.divisor);
  for (int e = threadIdx.x; e < p.channels * R * S; e += 256) {
    const int c = e / (R * S), tap = e % (R * S);
    weights[(p.flipped ? R * S - 1 - tap : tap) * p.channels + c] =
        static_cast<Acc>(static_cast<const T*>(p.weights)[e]);
  }
  __syncthreads();
  const int64_t item = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (item >= p.items) return;
  int64_t rest = quotient(p.packs, item);
  const int c0 = static_cast<int>(item - rest * packs) * kV;
  const int64_t row_item = quotient(p.strips, rest);
  const int j0 = static_cast<int>(rest - row_item * p.strips.divisor) * Strip;
  const int64_t n = quotient(p.row_groups, row_item);
  const int i0 = static_cast<int>(row_item - n * p.row_groups.divisor) * p.rows;
  const T* in = static_cast<const T*>(p.in) + n * p.in_h * p.in_w * p.channels + c0;
  T* out = static_cast<T*>(p.out) + n * p.out_h * p.out_w * p.channels + c0;
  const Acc* bias = static_cast<const Acc*>(p.bias);
  const int v0 = j0 * Stride - p.pad_w;
  for (int i = i0; i < min(i0 + p.rows, p.out_h); ++i) {
    Acc sums[Strip][kV];
#pragma unroll
    for (int q = 0; q < Strip; ++q) {
#pragma unroll
      for (int e = 0; e < kV; ++e) sums[q][e] = bias == nullptr ? Acc(0) : bias[c0 + e];
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int u = i * Stride + r - p.pad_h;
      if (static_cast<unsigned>(u) >= static_cast<unsigned>(p.in_h)) continue;
      Pack<T, kV> x[kColumns];
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        const int v = v0 + column;
        x[column] = static_cast<unsigned>(v) < static_cast<unsigned>(p.in_w)
                        ? load_pack<kV>(in + (static_cast<int64_t>(u) * p.in_w + v) * p.channels)
                        : repeat_pack<kV>(T(0.0f));
      }
      Acc w[S][kV];
#pragma unroll
      for (int s = 0; s < S; ++s) {
#pragma unroll
        for (int e = 0; e < kV; ++e) w[s][e] = weights[(r * S + s) * p.channels + c0 + e];
      }
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        Acc value[kV];
        widen<T>(x[column], value);
#pragma unroll
        for (int q = 0; q < Strip; ++q) {
          const int s = column - q * Stride;
          if (s < 0 || s >= S) continue;
#pragma unroll
          for (int e = 0; e < kV; ++e) sums[q][e] += value[e] * w[s][e];
        }
      }
    }
#pragma unroll
    for (int q = 0; q < Strip; ++q) {
      if (j0 + q >= p.out_w) continue;
      store_pack(out + (static_cast<int64_t>(i) * p.out_w + j0 + q) * p.channels,
                 narrow_pack<T>(sums[q]));
    }
  }
}

// math    as at DepthwiseWgrad
// grid    x: slices; y: tiles of p.lanes packs of channels. A thread takes every so many strips
// bytes   dy once, x once and again from caches, partials
// smem    the sums of the block's threads, a tap at a time
// order   strips of a thread in order, then the threads; slices are added by conv2d_reduce
template <class T, int R, int S, int Stride, int Strip>
__global__ void __launch_bounds__(256)
    conv2d_depthwise_wgrad(const __grid_constant__ DepthwiseWgrad p) {
  using Acc = acc_t<T>;
  constexpr int kV = kFullPack<T>, kColumns = (Strip - 1) * Stride + S;
  __shared__ __align__(16) Acc shared[256 * kV];
  const int lane = threadIdx.x % p.lanes, row = threadIdx.x / p.lanes, rows = 256 / p.lanes;
  const int c0 = (blockIdx.y * p.lanes + lane) * kV;
  Acc sums[R * S][kV] = {};
  const int64_t begin = blockIdx.x * p.items_per_slice;
  const int64_t end = min(begin + p.items_per_slice, p.items);
  for (int64_t item = begin + row; item < end && row < rows && c0 < p.channels; item += rows) {
    const int64_t row_item = quotient(p.strips, item), n = quotient(p.rows, row_item);
    const int j0 = static_cast<int>(item - row_item * p.strips.divisor) * Strip;
    const int i = static_cast<int>(row_item - n * p.rows.divisor), v0 = j0 * Stride - p.pad_w;
    const T* dy = static_cast<const T*>(p.dy) + (row_item * p.out_w + j0) * p.channels + c0;
    const T* x = static_cast<const T*>(p.x) + n * p.in_h * p.in_w * p.channels + c0;
    Pack<T, kV> upstream[Strip];
#pragma unroll
    for (int q = 0; q < Strip; ++q) {
      upstream[q] = j0 + q < p.out_w ? load_pack<kV>(dy + static_cast<int64_t>(q) * p.channels)
                                     : repeat_pack<kV>(T(0.0f));
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int u = i * Stride + r - p.pad_h;
      if (static_cast<unsigned>(u) >= static_cast<unsigned>(p.in_h)) continue;
      Pack<T, kV> values[kColumns];
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        const int v = v0 + column;
        values[column] =
            static_cast<unsigned>(v) < static_cast<unsigned>(p.in_w)
                ? load_pack<kV>(x + (static_cast<int64_t>(u) * p.in_w + v) * p.channels)
                : repeat_pack<kV>(T(0.0f));
      }
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        Acc value[kV];
        widen<T>(values[column], value);
#pragma unroll
        for (int q = 0; q < Strip; ++q) {
          const int s = column - q * Stride;
          if (s < 0 || s >= S) continue;
#pragma unroll
          for (int e = 0; e < kV; ++e) {
            sums[r * S + s][e] += static_cast<Acc>(upstream[q][e]) * value[e];
          }
        }
      }
    }
  }
#pragma unroll
  for (int tap = 0; tap < R * S; ++tap) {
    __syncthreads();
#pragma unroll
    for (int e = 0; e < kV; ++e) shared[threadIdx.x * kV + e] = sums[tap][e];
    __syncthreads();
    for (int e = threadIdx.x; e < p.lanes * kV; e += 256) {
      const int c = blockIdx.y * p.lanes * kV + e;
      if (c >= p.channels) continue;
      Acc sum = 0;
      for (int other = 0; other < rows; ++other) sum += shared[other * p.lanes * kV + e];
      static_cast<Acc*>(
          p.partials)[(static_cast<int64_t>(blockIdx.x) * p.channels + c) * (R * S) + tap] = sum;
    }
  }
}

}  // namespace gradus
