// 64-byte vectors of the accumulator type, written with the compiler's vector extension: one
// AVX-512 register, two of AVX2 or four of the baseline. Every instruction set adds in the same
// lanes, so the order of a sum depends on its length only.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/dtype.h"
#include "cpu/context.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace gradus::GRADUS_ISA {

namespace detail {
template <class A, size_t bytes>
struct LanesType {
  typedef A type __attribute__((vector_size(bytes)));
};
}  // namespace detail

template <class A>
using Lanes = typename detail::LanesType<A, 64>::type;

template <class A>
inline constexpr int64_t kLaneCount = 64 / sizeof(A);

// The number of valid lanes where all of them are: a constant, so that the check folds away.
template <class A>
using FullLanes = std::integral_constant<int64_t, kLaneCount<A>>;

namespace detail {

using Bits16 = LanesType<uint16_t, 32>::type;
using Bits32 = LanesType<uint32_t, 64>::type;

inline Lanes<float> widen(const BFloat16* x) {
  Bits16 bits;
  std::memcpy(&bits, x, sizeof bits);
  return (Lanes<float>)(__builtin_convertvector(bits, Bits32) << 16);
}

inline void narrow(BFloat16* y, Lanes<float> v) {
  const Bits32 bits = (Bits32)v;
  const Bits32 rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const Bits32 quiet = (bits >> 16) | 0x40u;
  const Bits32 is_nan = (Bits32)((bits & 0x7FFFFFFFu) > 0x7F800000u);
  const Bits16 out = __builtin_convertvector((rounded & ~is_nan) | (quiet & is_nan), Bits16);
  std::memcpy(static_cast<void*>(y), &out, sizeof out);
}

inline Lanes<float> widen(const Half* x) {
  Lanes<float> v;
#if defined(__AVX512F__)
  // All lanes; the form without a mask makes g++ 12 warn of its own header.
  v = (Lanes<float>)_mm512_maskz_cvtph_ps(0xFFFF,
                                          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
#elif defined(__F16C__)
  for (int half = 0; half < 2; ++half) {
    const __m256 part =
        _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x) + half));
    std::memcpy(reinterpret_cast<float*>(&v) + 8 * half, &part, sizeof part);
  }
#else
  for (int i = 0; i < 16; ++i) v[i] = static_cast<float>(x[i]);
#endif
  return v;
}

inline void narrow(Half* y, Lanes<float> v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(y),
                      _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__F16C__)
  for (int half = 0; half < 2; ++half) {
    __m256 part;
    std::memcpy(&part, reinterpret_cast<const float*>(&v) + 8 * half, sizeof part);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y) + half,
                     _mm256_cvtps_ph(part, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
#else
  for (int i = 0; i < 16; ++i) y[i] = Half(v[i]);
#endif
}

}  // namespace detail

template <class A>
inline Lanes<A> splat(A value) {
  return Lanes<A>{} + value;
}

// The next kLaneCount values of T as acc_t<T>.
template <class T>
inline Lanes<acc_t<T>> load(const T* x) {
  if constexpr (std::is_same_v<T, acc_t<T>>) {
    Lanes<T> v;
    std::memcpy(&v, x, sizeof v);
    return v;
  } else {
    return detail::widen(x);
  }
}

template <class T>
inline void store(T* y, Lanes<acc_t<T>> v) {
  if constexpr (std::is_same_v<T, acc_t<T>>) {
    std::memcpy(static_cast<void*>(y), &v, sizeof v);
  } else {
    detail::narrow(y, v);
  }
}

namespace detail {

// Some of a vector's elements, fewer than all, to or from an array of all of them. One masked
// access where the instruction set has it: a copy of few and varying bytes costs as much as a whole
// row.
template <class T>
inline void read_some(T* all, const T* from, int64_t count) {
#if defined(__AVX512F__)
  const uint32_t mask = (uint32_t(1) << count) - 1;
  if constexpr (sizeof(T) == 2) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(all),
                        _mm256_maskz_loadu_epi16(static_cast<__mmask16>(mask), from));
  } else if constexpr (sizeof(T) == 4) {
    _mm512_storeu_si512(all, _mm512_maskz_loadu_epi32(static_cast<__mmask16>(mask), from));
  } else {
    _mm512_storeu_si512(all, _mm512_maskz_loadu_epi64(static_cast<__mmask8>(mask), from));
  }
#else
  std::memset(static_cast<void*>(all), 0, kLaneCount<acc_t<T>> * sizeof(T));
  std::memcpy(static_cast<void*>(all), from, static_cast<size_t>(count) * sizeof(T));
#endif
}

template <class T>
inline void write_some(T* to, const T* all, int64_t count) {
#if defined(__AVX512F__)
  const uint32_t mask = (uint32_t(1) << count) - 1;
  if constexpr (sizeof(T) == 2) {
    _mm256_mask_storeu_epi16(to, static_cast<__mmask16>(mask),
                             _mm256_loadu_si256(reinterpret_cast<const __m256i*>(all)));
  } else if constexpr (sizeof(T) == 4) {
    _mm512_mask_storeu_epi32(to, static_cast<__mmask16>(mask), _mm512_loadu_si512(all));
  } else {
    _mm512_mask_storeu_epi64(to, static_cast<__mmask8>(mask), _mm512_loadu_si512(all));
  }
#else
  std::memcpy(static_cast<void*>(to), all, static_cast<size_t>(count) * sizeof(T));
#endif
}

}  // namespace detail

// The first `lanes` values; the other lanes are 0. Reads nothing beyond them.
template <class T, class Count>
inline Lanes<acc_t<T>> load(const T* x, Count lanes) {
  if constexpr (!std::is_same_v<Count, int64_t>) return load(x);
  T copy[kLaneCount<acc_t<T>>];
  detail::read_some(copy, x, lanes);
  return load(copy);
}

template <class T, class Count>
inline void store(T* y, Lanes<acc_t<T>> v, Count lanes) {
  if constexpr (!std::is_same_v<Count, int64_t>) return store(y, v);
  T copy[kLaneCount<acc_t<T>>];
  store(copy, v);
  detail::write_some(y, copy, lanes);
}

// v with the lanes from `lanes` on set to 0.
template <class A, class Count>
inline Lanes<A> keep(Lanes<A> v, Count lanes) {
  if constexpr (std::is_same_v<Count, int64_t>) {
    using Index = std::conditional_t<sizeof(A) == 4, int32_t, int64_t>;
    using Indices = typename detail::LanesType<Index, 64>::type;
    Indices index;
    for (int i = 0; i < kLaneCount<A>; ++i) index[i] = i;
    const Indices kept = (Indices)(index < static_cast<Index>(lanes));
    return (Lanes<A>)((Indices)v & kept);
  }
  return v;
}

// Sum of the lanes, halves folded onto each other.
template <class A>
inline A sum_lanes(Lanes<A> v) {
  A lanes[kLaneCount<A>];
  std::memcpy(lanes, &v, sizeof lanes);
  for (int64_t width = kLaneCount<A> / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

// Calls f(first element, valid lanes, k) for each vector of `count` elements; k cycles through 0..3
// for the caller's four independent accumulators.
template <class A, class F>
inline void for_each_lanes(int64_t count, F&& f) {
  constexpr int64_t lanes = kLaneCount<A>;
  int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    f(i, FullLanes<A>{}, 0);
    f(i + lanes, FullLanes<A>{}, 1);
    f(i + 2 * lanes, FullLanes<A>{}, 2);
    f(i + 3 * lanes, FullLanes<A>{}, 3);
  }
  for (; i + lanes <= count; i += lanes) f(i, FullLanes<A>{}, 0);
  if (i < count) f(i, count - i, 0);
}

// Consecutive values from one of T and acc_t<T> to the other.
template <class From, class To>
void convert_run(const From* from, int64_t count, To* to) {
  if constexpr (std::is_same_v<From, To>) {
    std::copy(from, from + count, to);
  } else {
    for_each_lanes<std::common_type_t<acc_t<From>, acc_t<To>>>(
        count, [&](int64_t i, auto lanes, int) { store(to + i, load(from + i, lanes), lanes); });
  }
}

}  // namespace gradus::GRADUS_ISA
