// 64-byte vectors of the accumulator type, written with the compiler's vector extension: one
// AVX-512 register, two of AVX2 or four of the baseline. Every instruction set adds in the same
// lanes, so the order of a sum depends on its length only.
#pragma once

#include <cstring>

#include "core/dtype.h"
#include "cpu/context.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace gradus::GRADUS_ISA {

namespace detail {
template <class A, size_t bytes>
struct VecType {
  typedef A type __attribute__((vector_size(bytes)));
};
}  // namespace detail

template <class A>
using Vec = typename detail::VecType<A, 64>::type;

template <class A>
inline constexpr int64_t kLanes = 64 / sizeof(A);

// The number of valid lanes: kFull where all are, so that the check folds away.
template <class A>
using FullLanes = std::integral_constant<int64_t, kLanes<A>>;

namespace detail {

using Bits16 = VecType<uint16_t, 32>::type;
using Bits32 = VecType<uint32_t, 64>::type;

inline Vec<float> widen(const BFloat16* x) {
  Bits16 bits;
  std::memcpy(&bits, x, sizeof bits);
  return (Vec<float>)(__builtin_convertvector(bits, Bits32) << 16);
}

inline void narrow(BFloat16* y, Vec<float> v) {
  const Bits32 bits = (Bits32)v;
  const Bits32 rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const Bits32 quiet = (bits >> 16) | 0x40u;
  const Bits32 is_nan = (Bits32)((bits & 0x7FFFFFFFu) > 0x7F800000u);
  const Bits16 out = __builtin_convertvector((rounded & ~is_nan) | (quiet & is_nan), Bits16);
  std::memcpy(static_cast<void*>(y), &out, sizeof out);
}

inline Vec<float> widen(const Half* x) {
  Vec<float> v;
#if defined(__AVX512F__)
  v = (Vec<float>)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
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

inline void narrow(Half* y, Vec<float> v) {
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
inline Vec<A> splat(A value) {
  return Vec<A>{} + value;
}

// The next kLanes values of T as acc_t<T>.
template <class T>
inline Vec<acc_t<T>> load(const T* x) {
  if constexpr (std::is_same_v<T, acc_t<T>>) {
    Vec<T> v;
    std::memcpy(&v, x, sizeof v);
    return v;
  } else {
    return detail::widen(x);
  }
}

template <class T>
inline void store(T* y, Vec<acc_t<T>> v) {
  if constexpr (std::is_same_v<T, acc_t<T>>) {
    std::memcpy(static_cast<void*>(y), &v, sizeof v);
  } else {
    detail::narrow(y, v);
  }
}

// The first `lanes` values; the other lanes are 0. Reads nothing beyond them.
template <class T, class Lanes>
inline Vec<acc_t<T>> load(const T* x, Lanes lanes) {
  if constexpr (!std::is_same_v<Lanes, int64_t>) return load(x);
  T copy[kLanes<acc_t<T>>] = {};
  std::memcpy(static_cast<void*>(copy), x, static_cast<size_t>(lanes) * sizeof(T));
  return load(copy);
}

template <class T, class Lanes>
inline void store(T* y, Vec<acc_t<T>> v, Lanes lanes) {
  if constexpr (!std::is_same_v<Lanes, int64_t>) return store(y, v);
  T copy[kLanes<acc_t<T>>];
  store(copy, v);
  std::memcpy(static_cast<void*>(y), copy, static_cast<size_t>(lanes) * sizeof(T));
}

// v with the lanes from `lanes` on set to 0.
template <class A, class Lanes>
inline Vec<A> keep(Vec<A> v, Lanes lanes) {
  if constexpr (std::is_same_v<Lanes, int64_t>) {
    for (int64_t i = lanes; i < kLanes<A>; ++i) v[i] = A(0);
  }
  return v;
}

// Sum of the lanes, halves folded onto each other.
template <class A>
inline A sum_lanes(Vec<A> v) {
  A lanes[kLanes<A>];
  std::memcpy(lanes, &v, sizeof lanes);
  for (int64_t width = kLanes<A> / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

// Calls f(first element, valid lanes, k) for each vector of `count` elements; k cycles through 0..3
// for the caller's four independent accumulators.
template <class A, class F>
inline void for_each_vec(int64_t count, F&& f) {
  constexpr int64_t lanes = kLanes<A>;
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

}  // namespace gradus::GRADUS_ISA
