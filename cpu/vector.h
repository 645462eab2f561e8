// A vector register of the instruction set in use, through the compiler's vector extension, for
// the few loops that the compiler does not vectorise well by itself.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

namespace gradus::GRADUS_ISA {

#if defined(GRADUS_ISA_avx512)
inline constexpr int kVectorBytes = 64;
inline constexpr int kRegisters = 32;
#elif defined(GRADUS_ISA_avx2)
inline constexpr int kVectorBytes = 32;
inline constexpr int kRegisters = 16;
#else
inline constexpr int kVectorBytes = 16;
inline constexpr int kRegisters = 16;
#endif

template <class A>
struct VectorOf {
  typedef A type __attribute__((vector_size(kVectorBytes)));
  typedef A unaligned __attribute__((vector_size(kVectorBytes), aligned(sizeof(A)), may_alias));
};
template <class A>
using Vec = typename VectorOf<A>::type;

template <class A>
inline constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(A));

#define GRADUS_INLINE inline __attribute__((always_inline))

template <class A>
GRADUS_INLINE Vec<A> load_vector(const A* from) {
  return *reinterpret_cast<const typename VectorOf<A>::unaligned*>(from);
}
template <class A>
GRADUS_INLINE void store_vector(A* to, Vec<A> value) {
  *reinterpret_cast<typename VectorOf<A>::unaligned*>(to) = value;
}

template <class A, int... I>
GRADUS_INLINE void interleave(Vec<A> a, Vec<A> b, Vec<A>& low, Vec<A>& high,
                              std::integer_sequence<int, I...>) {
  constexpr int n = kLanes<A>;
  low = __builtin_shufflevector(a, b, (I / 2 + I % 2 * n)...);
  high = __builtin_shufflevector(a, b, (n / 2 + I / 2 + I % 2 * n)...);
}

template <class A, int... I>
GRADUS_INLINE void split_pairs(Vec<A> a, Vec<A> b, Vec<A>& even, Vec<A>& odd,
                               std::integer_sequence<int, I...>) {
  even = __builtin_shufflevector(a, b, (2 * I)...);
  odd = __builtin_shufflevector(a, b, (2 * I + 1)...);
}

// The even and the odd values of two vectors that follow each other.
template <class A>
GRADUS_INLINE void split_pairs(Vec<A> a, Vec<A> b, Vec<A>& even, Vec<A>& odd) {
  split_pairs<A>(a, b, even, odd, std::make_integer_sequence<int, kLanes<A>>());
}

// Transposes the square that the kLanes vectors form: interleaving the halves log2(kLanes) times.
template <class A>
GRADUS_INLINE void transpose_square(Vec<A> (&rows)[kLanes<A>]) {
  constexpr int n = kLanes<A>;
#pragma GCC unroll 4
  for (int width = 1; width < n; width *= 2) {
    Vec<A> next[n];
#pragma GCC unroll 8
    for (int i = 0; i < n / 2; ++i) {
      interleave<A>(rows[i], rows[i + n / 2], next[2 * i], next[2 * i + 1],
                    std::make_integer_sequence<int, n>());
    }
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) rows[i] = next[i];
  }
}

// The first `count` lanes; the others are 0, or left alone.
template <class A>
GRADUS_INLINE Vec<A> load_lanes(const A* from, int64_t count) {
  if (count >= kLanes<A>) return load_vector(from);
  A lanes[kLanes<A>] = {};
  for (int i = 0; i < kLanes<A>; ++i) {
    if (i < count) lanes[i] = from[i];
  }
  return load_vector(lanes);
}
template <class A>
GRADUS_INLINE void store_lanes(A* to, Vec<A> value, int64_t count) {
  if (count >= kLanes<A>) return store_vector(to, value);
  A lanes[kLanes<A>];
  store_vector(lanes, value);
  for (int i = 0; i < kLanes<A>; ++i) {
    if (i < count) to[i] = lanes[i];
  }
}

// to[j · to_stride + i] = from[i · from_stride + j] for i < rows, j < columns.
template <class A>
void transpose(const A* from, int64_t from_stride, int64_t rows, int64_t columns, A* to,
               int64_t to_stride) {
  constexpr int64_t n = kLanes<A>;
  for (int64_t i = 0; i < rows; i += n) {
    const int64_t height = rows - i < n ? rows - i : n;
    for (int64_t j = 0; j < columns; j += n) {
      const int64_t width = columns - j < n ? columns - j : n;
      const A* source = from + i * from_stride + j;
      A* target = to + j * to_stride + i;
      Vec<A> square[n];
      if (height == n && width == n) {
#pragma GCC unroll 16
        for (int a = 0; a < n; ++a) square[a] = load_vector(source + a * from_stride);
        transpose_square<A>(square);
#pragma GCC unroll 16
        for (int b = 0; b < n; ++b) store_vector(target + b * to_stride, square[b]);
        continue;
      }
      for (int64_t a = 0; a < n; ++a)
        square[a] = a < height ? load_lanes(source + a * from_stride, width) : Vec<A>{};
      transpose_square<A>(square);
      for (int64_t b = 0; b < width; ++b) store_lanes(target + b * to_stride, square[b], height);
    }
  }
}

}  // namespace gradus::GRADUS_ISA
