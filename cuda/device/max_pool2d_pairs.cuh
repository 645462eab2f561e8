// Kernels of max_pool2d with windows of 2 x 2 side by side. Each lane takes units of one 16-byte
// load per row of x (contiguous) or per tap (channels-last), several of them in flight. The index
// has two bits per output in the order of memory (core/ops/max_pool2d.h): neighbouring lanes join
// theirs to words.
#pragma once

#include "core/dtype.h"
#include "cuda/device/bits.cuh"
#include "cuda/device/quotient.cuh"
#include "cuda/device/vector.cuh"

namespace gradus {

inline constexpr int kPairThreads = 256;

// Extents of one pooling, and how the units of a row of windows are counted.
struct Pairs {
  int64_t units = 0;          // of all rows
  FastDivisor across;         // units of a row of y
  FastDivisor columns, rows;  // q and p
  int64_t h = 0, w = 0, p = 0, q = 0, channels = 0;
  int64_t index_bytes = 0;
};

// The larger of the taps so far and one more: the first of equals stays, the first NaN wins.
template <class T>
struct Winner {
  T value;
  uint32_t tap = 0;
  __device__ __forceinline__ explicit Winner(T first) : value(first) {}
  __device__ __forceinline__ void compete(T candidate, uint32_t its_tap) {
    const auto most = static_cast<acc_t<T>>(value), next = static_cast<acc_t<T>>(candidate);
    const bool wins = !(next <= most) && most == most;
    value = wins ? candidate : value;
    tap = wins ? its_tap : tap;
  }
};

__device__ __forceinline__ int64_t first_unit(int units) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kPairThreads + threadIdx.x;
  return thread / 32 * 32 * units + threadIdx.x % 32;
}

// The row of windows that unit `unit` lies in, as (plane, i), and its place in the row.
struct RowPlace {
  int64_t plane;
  int64_t i;
  int64_t column;  // in units
  __device__ __forceinline__ RowPlace(const Pairs& g, int64_t unit) {
    const int64_t row = quotient(g.across, unit);
    column = unit - row * g.across.divisor;
    plane = quotient(g.rows, row);
    i = row - plane * g.p;
  }
};

// math:  y and index of N / 2 windows from N neighbours in two rows
// grid:  1-D; a warp takes kUnits · 32 units, unit u·32 + lane for u = 0, 1, ...
// bytes: fewest = actual: 1.25·E·b + E/16 with the index, each once
// needs: contiguous; q = w / 2, N divides w; x aligned to N elements, y to N / 2, index to 4
template <int N, class T>
__global__ void __launch_bounds__(kPairThreads)
    max_pool2d_forward_pairs(const __grid_constant__ Pairs g, const T* x, T* y, uint8_t* index) {
  constexpr int kUnits = 4, kLanes = 32 / N;
  const int64_t start = first_unit(kUnits);
  if (start - threadIdx.x % 32 >= g.units) return;  // the whole warp
  Pack<T, N> top[kUnits], bottom[kUnits];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int64_t unit = start + u * 32;
    if (unit >= g.units) continue;
    const RowPlace place(g, unit);
    const T* from = x + (place.plane * g.h + 2 * place.i) * g.w + place.column * N;
    top[u] = load_pack<N>(from);
    // A row that is not there repeats the one above: equals never win.
    bottom[u] = 2 * place.i + 1 < g.h ? load_pack<N>(from + g.w) : top[u];
  }
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int64_t unit = start + u * 32;
    Pack<T, N / 2> best;
    uint32_t bits = 0;
#pragma unroll
    for (int o = 0; o < N / 2; ++o) {
      Winner<T> winner(top[u][2 * o]);
      winner.compete(top[u][2 * o + 1], 1);
      winner.compete(bottom[u][2 * o], 2);
      winner.compete(bottom[u][2 * o + 1], 3);
      best[o] = winner.value;
      bits |= winner.tap << (2 * o);
    }
    if (unit < g.units) store_pack(y + unit * (N / 2), best);
    if (index == nullptr) continue;
    bits = join_bits<N>(unit < g.units ? bits : 0, threadIdx.x % 32);
    if (threadIdx.x % kLanes == 0 && unit < g.units)
      store_word(index, unit / kLanes, bits, g.index_bytes);
  }
}

// math:  dx = dy where the window took the element, else 0
// grid, bytes, needs: as max_pool2d_forward_pairs, of dx and dy
template <int N, class T>
__global__ void __launch_bounds__(kPairThreads)
    max_pool2d_backward_pairs(const __grid_constant__ Pairs g, const T* dy, const uint8_t* index,
                              T* dx) {
  constexpr int kUnits = 4;
  const int64_t start = first_unit(kUnits);
  Pack<T, N / 2> values[kUnits];
  uint32_t bits[kUnits];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int64_t unit = start + u * 32;
    if (unit >= g.units) continue;
    values[u] = load_pack<N / 2>(dy + unit * (N / 2));
    bits[u] = load_bits<N>(index, unit * N);
  }
  const T zero(0.0f);
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int64_t unit = start + u * 32;
    if (unit >= g.units) return;
    const RowPlace place(g, unit);
    Pack<T, N> top, bottom;
#pragma unroll
    for (int o = 0; o < N / 2; ++o) {
      const uint32_t tap = (bits[u] >> (2 * o)) & 3u;
      top[2 * o] = tap == 0 ? values[u][o] : zero;
      top[2 * o + 1] = tap == 1 ? values[u][o] : zero;
      bottom[2 * o] = tap == 2 ? values[u][o] : zero;
      bottom[2 * o + 1] = tap == 3 ? values[u][o] : zero;
    }
    T* to = dx + (place.plane * g.h + 2 * place.i) * g.w + place.column * N;
    store_pack(to, top);
    if (2 * place.i + 1 < g.h) store_pack(to + g.w, bottom);
    // A row below the last windows gets nothing.
    if (place.i == g.p - 1 && 2 * g.p < g.h) store_pack(to + 2 * g.w, repeat_pack<N>(zero));
  }
}

// The pixel of y that a unit of channels lies in.
struct PixelPlace {
  int64_t image, i, j, channel;  // channel: in units
  __device__ __forceinline__ PixelPlace(const Pairs& g, int64_t unit) {
    const int64_t pixel = quotient(g.across, unit), line = quotient(g.columns, pixel);
    channel = unit - pixel * g.across.divisor;
    j = pixel - line * g.q;
    image = quotient(g.rows, line);
    i = line - image * g.p;
  }
  // Element offset of tap 0 of the window in x.
  template <int N>
  __device__ __forceinline__ int64_t offset(const Pairs& g) const {
    return ((image * g.h + 2 * i) * g.w + 2 * j) * g.channels + channel * N;
  }
};

// math:  y and index of N channels of one window
// grid:  1-D; a warp takes kUnits · 32 units, unit u·32 + lane for u = 0, 1, ...
// bytes: fewest = actual: 1.25·E·b + E/16 with the index, each once
// needs: channels-last; N divides the channels; x and y aligned to N elements, index to 4
template <int N, class T>
__global__ void __launch_bounds__(kPairThreads)
    max_pool2d_forward_pairs_pixel(const __grid_constant__ Pairs g, const T* x, T* y,
                                   uint8_t* index) {
  constexpr int kUnits = 2, kBits = 2 * N, kLanes = 32 / kBits;
  const int64_t start = first_unit(kUnits);
  if (start - threadIdx.x % 32 >= g.units) return;  // the whole warp
  Pack<T, N> taps[kUnits][4];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int64_t unit = start + u * 32;
    if (unit >= g.units) continue;
    const PixelPlace place(g, unit);
    const T* from = x + place.offset<N>(g);
    const bool right = 2 * place.j + 1 < g.w, below = 2 * place.i + 1 < g.h;
    taps[u][0] = load_pack<N>(from);
    // What is not there repeats the first tap: equals never win.
    taps[u][1] = right ? load_pack<N>(from + g.channels) : taps[u][0];
    taps[u][2] = below ? load_pack<N>(from + g.w * g.channels) : taps[u][0];
    taps[u][3] = right && below ? load_pack<N>(from + (g.w + 1) * g.channels) : taps[u][0];
  }
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int64_t unit = start + u * 32;
    uint32_t bits = 0;
#pragma unroll
    for (int e = 0; e < N; ++e) {
      Winner<T> winner(taps[u][0][e]);
#pragma unroll
      for (uint32_t tap = 1; tap < 4; ++tap) winner.compete(taps[u][tap][e], tap);
      taps[u][0][e] = winner.value;
      bits |= winner.tap << (2 * e);
    }
    if (unit < g.units) store_pack(y + unit * N, taps[u][0]);
    if (index == nullptr) continue;
    bits = join_bits<kBits>(unit < g.units ? bits : 0, threadIdx.x % 32);
    if (threadIdx.x % kLanes == 0 && unit < g.units)
      store_word(index, unit / kLanes, bits, g.index_bytes);
  }
}

// math:  dx = dy where the window took the element, else 0
// grid, bytes, needs: as max_pool2d_forward_pairs_pixel, of dx and dy
template <int N, class T>
__global__ void __launch_bounds__(kPairThreads)
    max_pool2d_backward_pairs_pixel(const __grid_constant__ Pairs g, const T* dy,
                                    const uint8_t* index, T* dx) {
  constexpr int kUnits = 2, kBits = 2 * N;
  const int64_t start = first_unit(kUnits);
  Pack<T, N> values[kUnits];
  uint32_t bits[kUnits];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int64_t unit = start + u * 32;
    if (unit >= g.units) continue;
    values[u] = load_pack<N>(dy + unit * N);
    bits[u] = load_bits<kBits>(index, unit * kBits);
  }
  const T zero(0.0f);
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int64_t unit = start + u * 32;
    if (unit >= g.units) return;
    const PixelPlace place(g, unit);
    T* to = dx + place.offset<N>(g);
    // The last windows also clear the row and the column that none reaches.
    const int down = static_cast<int>(min(g.h - 2 * place.i, int64_t(place.i == g.p - 1 ? 3 : 2)));
    const int along = static_cast<int>(min(g.w - 2 * place.j, int64_t(place.j == g.q - 1 ? 3 : 2)));
#pragma unroll
    for (int r = 0; r < 3; ++r) {
#pragma unroll
      for (int s = 0; s < 3; ++s) {
        if (r >= down || s >= along) continue;
        Pack<T, N> result;
#pragma unroll
        for (int e = 0; e < N; ++e) {
          const uint32_t tap = (bits[u] >> (2 * e)) & 3u;
          const bool takes = r < 2 && s < 2 && tap == static_cast<uint32_t>(2 * r + s);
          result[e] = takes ? values[u][e] : zero;
        }
        store_pack(to + (r * g.w + s) * g.channels, result);
      }
    }
  }
}

// math:  as above, for contiguous tensors of any width and alignment, element by element
// grid:  1-D; one thread per four outputs, whose bits make a byte of the index
// bytes: as above, in accesses of one element
template <class T>
__global__ void __launch_bounds__(kPairThreads)
    max_pool2d_forward_pairs_any(const __grid_constant__ Pairs g, const T* x, T* y,
                                 uint8_t* index) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kPairThreads + threadIdx.x;
  uint32_t bits = 0;
  for (int k = 0; k < 4; ++k) {
    const int64_t at = thread * 4 + k;
    if (at >= g.units) break;
    const RowPlace place(g, at);
    const T* from = x + (place.plane * g.h + 2 * place.i) * g.w + 2 * place.column;
    const bool right = 2 * place.column + 1 < g.w, below = 2 * place.i + 1 < g.h;
    Winner<T> winner(from[0]);
    if (right) winner.compete(from[1], 1);
    if (below) winner.compete(from[g.w], 2);
    if (right && below) winner.compete(from[g.w + 1], 3);
    y[at] = winner.value;
    bits |= winner.tap << (2 * k);
  }
  if (index != nullptr && thread < g.index_bytes) index[thread] = static_cast<uint8_t>(bits);
}

// grid:  1-D; one thread per element of dx: here `across` is w and `rows` is h
template <class T>
__global__ void __launch_bounds__(kPairThreads)
    max_pool2d_backward_pairs_any(const __grid_constant__ Pairs g, const T* dy,
                                  const uint8_t* index, T* dx) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kPairThreads + threadIdx.x;
  if (at >= g.units) return;
  const int64_t row = quotient(g.across, at), column = at - row * g.w;
  const int64_t plane = quotient(g.rows, row), i = row - plane * g.h;
  T result(0.0f);
  if (i / 2 < g.p && column / 2 < g.q) {
    const int64_t from = (plane * g.p + i / 2) * g.q + column / 2;
    const uint32_t tap = load_bits<2>(index, from * 2) & 3u;
    if (tap == static_cast<uint32_t>(i % 2 * 2 + column % 2)) result = dy[from];
  }
  dx[at] = result;
}

}  // namespace gradus
