// exp of vectors of the accumulator type.
//
// exp(x) = 2^n·exp(r) with n = x/ln 2 rounded to an integer and r = x - n·ln 2, |r| <= 0.35; ln 2
// is taken in two parts, the first short enough that n·ln2_high is exact. exp(r) = 1 + r + r²·q(r),
// q a polynomial that interpolates (exp(r) - 1 - r)/r² at Chebyshev's points.
//
// Error: below 1.1 ulp in f32 and below 2e-16 relative in f64 for normal results. Subnormal results
// are kept and rounded once. exp(-inf) = 0, exp(inf) = inf, NaN stays NaN; exp(0) = 1 exactly.
#pragma once

#include <iterator>

#include "cpu/lanes.h"

namespace gradus::GRADUS_ISA {

// Lane by lane, a > b ? a : b, so that b wins where either is NaN. (With a mask, since g++ 12 takes
// the other forms for a use of an uninitialised register.)
template <class A>
inline Lanes<A> larger(Lanes<A> a, Lanes<A> b) {
#ifdef __AVX512F__
  if constexpr (std::is_same_v<A, float>) {
    return (Lanes<A>)_mm512_maskz_max_ps(0xFFFF, (__m512)a, (__m512)b);
  } else {
    return (Lanes<A>)_mm512_maskz_max_pd(0xFF, (__m512d)a, (__m512d)b);
  }
#else
  return a > b ? a : b;
#endif
}

template <class A>
inline Lanes<A> smaller(Lanes<A> a, Lanes<A> b) {
#ifdef __AVX512F__
  if constexpr (std::is_same_v<A, float>) {
    return (Lanes<A>)_mm512_maskz_min_ps(0xFFFF, (__m512)a, (__m512)b);
  } else {
    return (Lanes<A>)_mm512_maskz_min_pd(0xFF, (__m512d)a, (__m512d)b);
  }
#else
  return a < b ? a : b;
#endif
}

namespace detail {

template <class A>
struct ExpConstants;

template <>
struct ExpConstants<float> {
  using Int = int32_t;
  static constexpr int kMantissaBits = 23, kBias = 127;
  static constexpr float kLowest = -104, kHighest = 89;  // beyond: 0 and inf
  static constexpr float kPerLn2 = 0x1.715476p+0F;
  static constexpr float kLn2High = 0x1.62e4p-1F, kLn2Low = 0x1.7f7d1cp-20F;
  static constexpr float kQ[] = {0.5F, 0x1.5554dcp-3F, 0x1.555518p-5F, 0x1.120c62p-7F,
                                 0x1.6d11fep-10F};
};

template <>
struct ExpConstants<double> {
  using Int = int64_t;
  static constexpr int kMantissaBits = 52, kBias = 1023;
  static constexpr double kLowest = -746, kHighest = 710;
  static constexpr double kPerLn2 = 0x1.71547652b82fep+0;
  static constexpr double kLn2High = 0x1.62e42fefp-1, kLn2Low = 0x1.473de6af278edp-34;
  static constexpr double kQ[] = {
      0x1.0000000000001p-1,  0x1.5555555555556p-3,  0x1.5555555553d05p-5,  0x1.1111111110996p-7,
      0x1.6c16c178b0646p-10, 0x1.a01a01a7da98dp-13, 0x1.a019b87f7a6e9p-16, 0x1.71de0d573888bp-19,
      0x1.28922d8c8d4fbp-22, 0x1.af39789bfd689p-26};
};

// p·2^n for integers n in `shifted` = n + 1.5·2^mantissa bits, rounded once where the result is
// subnormal.
template <class A>
inline Lanes<A> scale_by_power(Lanes<A> p, [[maybe_unused]] Lanes<A> n,
                               [[maybe_unused]] Lanes<A> shifted, [[maybe_unused]] A shift) {
#ifdef __AVX512F__
  if constexpr (std::is_same_v<A, float>) {
    return (Lanes<A>)_mm512_maskz_scalef_ps(0xFFFF, (__m512)p, (__m512)n);
  } else {
    return (Lanes<A>)_mm512_maskz_scalef_pd(0xFF, (__m512d)p, (__m512d)n);
  }
#else
  // In two steps, since n goes beyond the exponents of normal numbers.
  using C = ExpConstants<A>;
  using Ints = typename LanesType<typename C::Int, 64>::type;
  const Ints steps = (Ints)shifted - (Ints)splat<A>(shift);
  const Ints half = steps >> 1;
  const Ints first = (half + C::kBias) << C::kMantissaBits;
  const Ints second = (steps - half + C::kBias) << C::kMantissaBits;
  return (p * (Lanes<A>)first) * (Lanes<A>)second;
#endif
}

}  // namespace detail

template <class A>
inline Lanes<A> exp_lanes(Lanes<A> x) {
  using C = detail::ExpConstants<A>;
  x = larger<A>(splat<A>(C::kLowest), smaller<A>(splat<A>(C::kHighest), x));
  // Adding 1.5·2^mantissa bits leaves no room for a fraction: what remains is n, rounded.
  constexpr A shift = A(3) * (int64_t{1} << (C::kMantissaBits - 1));
  const Lanes<A> shifted = x * C::kPerLn2 + shift;
  const Lanes<A> n = shifted - shift;
  const Lanes<A> r = (x - n * C::kLn2High) - n * C::kLn2Low;
  constexpr int last = static_cast<int>(std::size(C::kQ)) - 1;
  Lanes<A> q = splat<A>(C::kQ[last]);
#pragma GCC unroll 16
  for (int i = last - 1; i >= 0; --i) q = q * r + C::kQ[i];
  const Lanes<A> p = (q * (r * r) + r) + A(1);
  return detail::scale_by_power<A>(p, n, shifted, shift);
}

}  // namespace gradus::GRADUS_ISA
