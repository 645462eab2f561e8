// Pooling with windows of 2 x 2 side by side, at the speed of memory: the places that threads work
// on, and the kernels of max_pool2d. A lane takes units of one 16-byte access per row (contiguous)
// or per tap (channels-last), several of them in flight. The index of max_pool2d has two bits per
// output in the order of memory (core/ops/max_pool2d.h): neighbouring lanes join theirs to bytes.
//
// I is the type of indices into x: uint32_t where x has fewer than 2^31 elements, else int64_t.
#pragma once

#include "core/dtype.h"
#include "cuda/device/bits.cuh"
#include "cuda/device/quotient.cuh"
#include "cuda/device/vector.cuh"

namespace gradus {

inline constexpr int kPairThreads = 256;
inline constexpr int kRowUnits = 4;    // units of a lane, contiguous tensors
inline constexpr int kPixelUnits = 2;  // and channels-last ones

// Extents of one pooling, and how its units are counted.
struct Pairs {
  int64_t units = 0;
  FastDivisor across;   // units of a row, or of a pixel's channels
  FastDivisor columns;  // q
  FastDivisor rows;     // p, or h where units are those of x
  int h = 0, w = 0, p = 0, q = 0, channels = 0;
};

__device__ __forceinline__ uint32_t quotient_in(const FastDivisor& d, uint32_t i) {
  return d.quotient(i);
}
__device__ __forceinline__ int64_t quotient_in(const FastDivisor& d, int64_t i) {
  return quotient(d, i);
}

// The first unit of this warp; its lanes take units lane, lane + 32, ... from there.
template <class I>
__device__ __forceinline__ I warp_unit(int per_lane) {
  return (static_cast<I>(blockIdx.x) * (kPairThreads / 32) + threadIdx.x / 32) * (32 * per_lane);
}

// The unit, or the last one where there is none: what a lane loads must depend on no branch, for
// the compiler unpacks a 16-bit pack before the branch's end and so waits for it there.
template <class I>
__device__ __forceinline__ I unit_upto(const Pairs& g, I unit) {
  return min(unit, static_cast<I>(g.units - 1));
}

// A unit of a row of y (or of x, with g.rows for its height): which plane, row and place in the
// row.
template <class I>
struct RowPlace {
  I plane, row, i, column;  // row: of all planes; column: in units
  __device__ __forceinline__ RowPlace(const Pairs& g, I unit) {
    row = quotient_in(g.across, unit);
    column = unit - row * static_cast<I>(g.across.divisor);
    plane = quotient_in(g.rows, row);
    i = row - plane * static_cast<I>(g.rows.divisor);
  }
};

// A unit of channels of a pixel of y.
template <class I>
struct PixelPlace {
  I image, i, j, channel;  // channel: in units
  __device__ __forceinline__ PixelPlace(const Pairs& g, I unit) {
    const I pixel = quotient_in(g.across, unit), line = quotient_in(g.columns, pixel);
    channel = unit - pixel * static_cast<I>(g.across.divisor);
    j = pixel - line * static_cast<I>(g.q);
    image = quotient_in(g.rows, line);
    i = line - image * static_cast<I>(g.p);
  }
  // Element offset of tap 0 of the window in x.
  template <int N>
  __device__ __forceinline__ I offset(const Pairs& g) const {
    const I row = image * static_cast<I>(g.h) + 2 * i;
    return (row * static_cast<I>(g.w) + 2 * j) * static_cast<I>(g.channels) + channel * N;
  }
};

// The larger of the taps so far and one more: the first of equals stays, the first NaN wins.
template <class A>
struct Winner {
  A value;
  uint32_t tap = 0;
  Winner() = default;
  __device__ __forceinline__ explicit Winner(A first, uint32_t its_tap = 0)
      : value(first), tap(its_tap) {}
  __device__ __forceinline__ void compete(A next, uint32_t its_tap) {
    const bool wins = !(next <= value) && value == value;
    value = wins ? next : value;
    tap = wins ? its_tap : tap;
  }
};

// Columns of x that a unit of windows covers, where an access brings N elements of a row.
template <int N>
inline constexpr int kPairColumns = N > 1 ? N : 2;

// Those of one row in one access, or where N = 1 one by one, so that any row will do: the second,
// which lies `right` further, repeats the first where there is none.
template <int N, class T>
__device__ __forceinline__ Pack<T, kPairColumns<N>> load_columns(const T* from, int right) {
  if constexpr (N > 1) {
    return load_pack<N>(from);
  } else {
    Pack<T, 2> columns;
    columns[0] = from[0];
    columns[1] = from[right];
    return columns;
  }
}

// math:  y and index of N / 2 windows (at least one) from their columns in two rows
// grid:  1-D; a warp takes kRowUnits · 32 units
// bytes: fewest = actual: 1.25·E·b + E/16 with the index, each once
// needs: contiguous; where N > 1: q = w / 2, N divides w; x aligned to N elements, y to N / 2;
//        without the bound of three blocks the compiler spares registers and keeps loads back until
//        others are used
template <int N, bool WithIndex, class I, class T>
__global__ void __launch_bounds__(kPairThreads, 3)
    max_pool2d_forward_pairs(const __grid_constant__ Pairs g, const T* x, T* y, uint8_t* index) {
  using A = acc_t<T>;
  constexpr int kColumns = kPairColumns<N>, kOutputs = kColumns / 2;
  const I start = warp_unit<I>(kRowUnits) + threadIdx.x % 32;
  Pack<T, kColumns> top[kRowUnits], bottom[kRowUnits];
#pragma unroll
  for (int u = 0; u < kRowUnits; ++u) {
    const RowPlace<I> place(g, unit_upto<I>(g, start + u * 32));
    const I row = place.plane * static_cast<I>(g.h) + 2 * place.i;
    const T* from = x + (row * static_cast<I>(g.w) + place.column * kColumns);
    // What is not there repeats what is above or on the left: equals never win.
    const int below = 2 * static_cast<int>(place.i) + 1 < g.h ? g.w : 0;
    const int right = 2 * static_cast<int>(place.column) + 1 < g.w;
    top[u] = load_columns<N>(from, right);
    bottom[u] = load_columns<N>(from + below, right);
  }
#pragma unroll
  for (int u = 0; u < kRowUnits; ++u) {
    const I unit = start + u * 32;
    A best[kOutputs];
    uint32_t bits = 0;
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      Winner<A> winner(static_cast<A>(top[u][2 * o]));
      winner.compete(static_cast<A>(top[u][2 * o + 1]), 1);
      winner.compete(static_cast<A>(bottom[u][2 * o]), 2);
      winner.compete(static_cast<A>(bottom[u][2 * o + 1]), 3);
      best[o] = winner.value;
      bits |= winner.tap << (2 * o);
    }
    const bool present = unit < static_cast<I>(g.units);
    if (present) store_pack(y + unit * kOutputs, narrow_pack<T>(best));
    if constexpr (WithIndex) store_bits<kColumns>(index, unit * kColumns, bits, present);
  }
}

// Of `values`, those whose window took row r; the two columns of window o lie side by side. Nothing
// is computed: 16-bit elements move as bits.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> spread_row(const Pack<T, N / 2>& values, uint32_t bits,
                                                 uint32_t r) {
  Pack<T, N> row;
#pragma unroll
  for (int o = 0; o < N / 2; ++o) {
    const uint32_t tap = bits >> (2 * o);
    const bool is_row = (tap >> 1 & 1u) == r;
    if constexpr (sizeof(T) == 2) {
      const uint32_t pair = static_cast<uint32_t>(values[o].bits) << ((tap & 1u) * 16);
      const uint32_t word = is_row ? pair : 0u;
      memcpy(&row[2 * o], &word, sizeof word);
    } else {
      row[2 * o] = is_row && (tap & 1u) == 0 ? values[o] : T(0);
      row[2 * o + 1] = is_row && (tap & 1u) == 1 ? values[o] : T(0);
    }
  }
  return row;
}

// math:  dx = dy where the window took the element, else 0
// grid:  1-D; a warp takes kRowUnits · 32 units of N neighbours of dx, in the order of memory, so
//        that its stores are one run; here `rows` is h
// bytes: fewest = actual from memory: dy and the index are read for either row, once from the cache
// needs: as max_pool2d_forward_pairs, of dx and dy
template <int N, class I, class T>
__global__ void __launch_bounds__(kPairThreads)
    max_pool2d_backward_pairs(const __grid_constant__ Pairs g, const T* dy, const uint8_t* index,
                              T* dx) {
  const I start = warp_unit<I>(kRowUnits) + threadIdx.x % 32;
  Pack<T, N / 2> values[kRowUnits];
  uint32_t bits[kRowUnits], r[kRowUnits];
#pragma unroll
  for (int u = 0; u < kRowUnits; ++u) {
    const RowPlace<I> place(g, unit_upto<I>(g, start + u * 32));
    const int i = static_cast<int>(place.i) / 2, window = min(i, g.p - 1);
    const I from =
        (place.plane * static_cast<I>(g.p) + window) * static_cast<I>(g.q) + place.column * (N / 2);
    r[u] = i == window ? static_cast<uint32_t>(place.i % 2) : 2;  // below the last: no row
    values[u] = load_pack<N / 2>(dy + from);
    bits[u] = load_bits<N>(index, from * 2);
  }
#pragma unroll
  for (int u = 0; u < kRowUnits; ++u) {
    const I unit = start + u * 32;
    if (unit >= static_cast<I>(g.units)) return;
    store_pack(dx + unit * N, spread_row<N>(values[u], bits[u], r[u]));
  }
}

// math:  y and index of N channels of one window
// grid:  1-D; a warp takes kPixelUnits · 32 units
// bytes: fewest = actual: 1.25·E·b + E/16 with the index, each once
// needs: channels-last; N divides the channels; x and y aligned to N elements, index to 2
template <int N, bool WithIndex, class I, class T>
__global__ void __launch_bounds__(kPairThreads)
    max_pool2d_forward_pairs_pixel(const __grid_constant__ Pairs g, const T* x, T* y,
                                   uint8_t* index) {
  using A = acc_t<T>;
  const I start = warp_unit<I>(kPixelUnits) + threadIdx.x % 32;
  Pack<T, N> taps[kPixelUnits][4];
#pragma unroll
  for (int u = 0; u < kPixelUnits; ++u) {
    const PixelPlace<I> place(g, unit_upto<I>(g, start + u * 32));
    const T* from = x + place.template offset<N>(g);
    // What is not there repeats an earlier tap: equals never win.
    const I right = 2 * static_cast<int>(place.j) + 1 < g.w ? g.channels : 0;
    const I below = 2 * static_cast<int>(place.i) + 1 < g.h
                        ? static_cast<I>(g.w) * static_cast<I>(g.channels)
                        : I(0);
    taps[u][0] = load_pack<N>(from);
    taps[u][1] = load_pack<N>(from + right);
    taps[u][2] = load_pack<N>(from + below);
    taps[u][3] = load_pack<N>(from + (below + right));
  }
#pragma unroll
  for (int u = 0; u < kPixelUnits; ++u) {
    const I unit = start + u * 32;
    A best[N];
    uint32_t bits = 0;
#pragma unroll
    for (int e = 0; e < N; ++e) {
      Winner<A> winner(static_cast<A>(taps[u][0][e]));
#pragma unroll
      for (uint32_t tap = 1; tap < 4; ++tap) winner.compete(static_cast<A>(taps[u][tap][e]), tap);
      best[e] = winner.value;
      bits |= winner.tap << (2 * e);
    }
    const bool present = unit < static_cast<I>(g.units);
    if (present) store_pack(y + unit * N, narrow_pack<T>(best));
    if constexpr (WithIndex) store_bits<2 * N>(index, unit * (2 * N), bits, present);
  }
}

// math:  dx = dy where the window took the element, else 0
// grid, bytes, needs: as max_pool2d_forward_pairs_pixel, of dx and dy
template <int N, class I, class T>
__global__ void __launch_bounds__(kPairThreads)
    max_pool2d_backward_pairs_pixel(const __grid_constant__ Pairs g, const T* dy,
                                    const uint8_t* index, T* dx) {
  constexpr int kBits = 2 * N;
  const I start = warp_unit<I>(kPixelUnits) + threadIdx.x % 32;
  Pack<T, N> values[kPixelUnits];
  uint32_t bits[kPixelUnits];
#pragma unroll
  for (int u = 0; u < kPixelUnits; ++u) {
    const I unit = unit_upto<I>(g, start + u * 32);
    values[u] = load_pack<N>(dy + unit * N);
    bits[u] = load_bits<kBits>(index, unit * kBits);
  }
  const T zero(0.0f);
#pragma unroll
  for (int u = 0; u < kPixelUnits; ++u) {
    const I unit = start + u * 32;
    if (unit >= static_cast<I>(g.units)) return;
    const PixelPlace<I> place(g, unit);
    T* to = dx + place.template offset<N>(g);
    // The last windows also clear the row and the column that none reaches.
    const int i = static_cast<int>(place.i), j = static_cast<int>(place.j);
    const int down = min(g.h - 2 * i, i == g.p - 1 ? 3 : 2);
    const int along = min(g.w - 2 * j, j == g.q - 1 ? 3 : 2);
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
        const I row = static_cast<I>(r) * static_cast<I>(g.w) + s;
        store_pack(to + row * static_cast<I>(g.channels), result);
      }
    }
  }
}

// A column of two rows of dx, and the window that holds it or is the next to it: of contiguous
// tensors, with w for `across` and ceil(h / 2) for `rows`.
template <class I>
struct ColumnPlace {
  I from, to;              // of the window and of the upper element
  bool covered, is_right;  // by the window; its second column
  bool has_lower;

  ColumnPlace() = default;
  __device__ __forceinline__ ColumnPlace(const Pairs& g, I unit) {
    const RowPlace<I> place(g, unit);
    const int i = static_cast<int>(place.i), column = static_cast<int>(place.column);
    const int row = min(i, g.p - 1), j = min(column / 2, g.q - 1);
    from = (place.plane * static_cast<I>(g.p) + row) * static_cast<I>(g.q) + j;
    to = (place.plane * static_cast<I>(g.h) + 2 * i) * static_cast<I>(g.w) + column;
    covered = i == row && column / 2 == j;
    is_right = column % 2 == 1;
    has_lower = 2 * i + 1 < g.h;
  }
};

// math:  as above, for contiguous tensors of any width and alignment, element by element
// grid:  1-D; a warp takes kRowUnits · 32 columns of two rows of dx, as ColumnPlace counts them
// bytes: as above, in accesses of one element: dy and the index for two columns, once from the
//        cache
template <class I, class T>
__global__ void __launch_bounds__(kPairThreads)
    max_pool2d_backward_pairs_any(const __grid_constant__ Pairs g, const T* dy,
                                  const uint8_t* index, T* dx) {
  const I start = warp_unit<I>(kRowUnits) + threadIdx.x % 32;
  ColumnPlace<I> places[kRowUnits];
  T values[kRowUnits];
  uint32_t bits[kRowUnits];
#pragma unroll
  for (int u = 0; u < kRowUnits; ++u) {
    const ColumnPlace<I> place(g, unit_upto<I>(g, start + u * 32));
    values[u] = dy[place.from];
    bits[u] = load_bits<2>(index, place.from * 2);
    places[u] = place;
  }
  const T zero(0.0f);
#pragma unroll
  for (int u = 0; u < kRowUnits; ++u) {
    if (start + u * 32 >= static_cast<I>(g.units)) return;
    const ColumnPlace<I>& place = places[u];
    const uint32_t tap = bits[u] & 3u, upper = place.is_right ? 1 : 0;
    dx[place.to] = place.covered && tap == upper ? values[u] : zero;
    if (place.has_lower) dx[place.to + g.w] = place.covered && tap == upper + 2 ? values[u] : zero;
  }
}

}  // namespace gradus
