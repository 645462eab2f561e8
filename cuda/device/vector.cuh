// Wide loads and stores: N elements of T move as one access of up to 16 bytes.
//
//   Pack<T, N> a = load_pack<N>(x + i);  // x + i aligned to N * sizeof(T)
//   for (int j = 0; j < N; ++j) a[j] = f(a[j]);
//   store_pack(y + i, a);
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/half.h"

namespace gradus {

namespace detail {
template <int Bytes>
struct Word;
template <>
struct Word<1> {
  using type = uint8_t;
};
template <>
struct Word<2> {
  using type = uint16_t;
};
template <>
struct Word<4> {
  using type = uint32_t;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<16> {
  using type = uint4;
};
}  // namespace detail

// What one access of so many bytes moves: 1, 2, 4, 8 or 16.
template <int Bytes>
using word_t = typename detail::Word<Bytes>::type;

// Elements of T in an access of 16 bytes.
template <class T>
inline constexpr int kFullPack = 16 / static_cast<int>(sizeof(T));

template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T values[N];
  GRADUS_HD T& operator[](int i) { return values[i]; }
  GRADUS_HD const T& operator[](int i) const { return values[i]; }
};

template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_pack(const T* from) {
  using Word = word_t<static_cast<int>(sizeof(T)) * N>;
  const Word word = *reinterpret_cast<const Word*>(from);
  Pack<T, N> pack;
  memcpy(&pack, &word, sizeof word);
  return pack;
}

template <class T, int N>
__device__ __forceinline__ void store_pack(T* to, const Pack<T, N>& pack) {
  using Word = word_t<static_cast<int>(sizeof(T)) * N>;
  Word word;
  memcpy(&word, &pack, sizeof word);
  *reinterpret_cast<Word*>(to) = word;
}

// Two floats rounded to neighbouring 16-bit values, the first in the low half.
template <class T>
__device__ __forceinline__ uint32_t rounded_pair(float first, float second) {
  uint32_t pair;
  if constexpr (std::is_same_v<T, Half>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  }
  return pair;
}

// The values as T, each rounded to nearest even; NaN stays NaN.
template <class T, int N, class A>
__device__ __forceinline__ Pack<T, N> narrow_pack(const A (&values)[N]) {
  Pack<T, N> pack;
  if constexpr (std::is_same_v<T, BFloat16> && N % 2 == 0) {
#pragma unroll
    for (int j = 0; j < N; j += 2) {
      const uint32_t pair = rounded_pair<T>(values[j], values[j + 1]);
      memcpy(&pack[j], &pair, sizeof pair);
    }
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) pack[j] = static_cast<T>(values[j]);
  }
  return pack;
}

// N times the same value.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> repeat_pack(T value) {
  Pack<T, N> pack;
#pragma unroll
  for (int j = 0; j < N; ++j) pack[j] = value;
  return pack;
}

}  // namespace gradus
