// exp, expm1, log1p, tanh and the logistic function for any value type that activations are
// computed in, so that both backends evaluate one text. A value type V has, beside + - * / and
// comparisons, the primitives that float and double get here; cpu/activation_pack.h gives them to
// vectors, cuda/device/activation_half.cuh to values that are rounded to 16 bits afterwards.
//
// Polynomials: Chebyshev fits of the named function, of which the remainder is below a fifth of the
// type's last place before the coefficients are rounded. Errors are measured in
// tests/activation_accuracy_test.cpp.
#pragma once

#include <cmath>
#include <type_traits>

#include "core/half.h"

namespace gradus {

// float or double: the precision of V.
template <class V>
struct ScalarOf {
  using type = V;
};
template <class V>
using scalar_t = typename ScalarOf<V>::type;
template <class V>
inline constexpr bool kIsSingle = std::is_same_v<scalar_t<V>, float>;

// Whether a V is rounded to 16 bits afterwards, so that 2^-15 is right enough
// (cuda/device/activation_half.cuh).
template <class V>
inline constexpr bool kIsRounded = false;

// a where the condition holds, else b.
template <class V>
requires(std::is_floating_point_v<V>) GRADUS_HD V select(bool condition, V a, V b) {
  return condition ? a : b;
}
// a·b + c, rounded once where the hardware can.
template <class V>
requires(std::is_floating_point_v<V>) GRADUS_HD V fused(V a, V b, V c) { return std::fma(a, b, c); }
// a·b, rounded by itself: compilers may fuse a plain product into a sum, and then its error counts
// twice where it is added.
GRADUS_HD float product_of(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
GRADUS_HD double product_of(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
// a·b - product, where that is a·b rounded to V, or to an integer: then the difference is rounded.
template <class V>
requires(std::is_floating_point_v<V>) GRADUS_HD V product_error(V a, V b, V product) {
  return std::fma(a, b, -product);
}
template <class V>
requires(std::is_floating_point_v<V>) GRADUS_HD V abs_of(V x) { return std::fabs(x); }
template <class V>
requires(std::is_floating_point_v<V>) GRADUS_HD V copysign_of(V x, V sign) {
  return std::copysign(x, sign);
}

// 1 / x within a unit of the last place, for normal x whose reciprocal is normal.
template <class V>
requires(std::is_floating_point_v<V>) GRADUS_HD V reciprocal_of(V x) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<V, float>) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
  }
#endif
  return V(1) / x;
}

// Adding this to a number of moderate size leaves its nearest integer n in the low bits.
template <class S>
inline constexpr S kToInteger = std::is_same_v<S, float> ? S(0x1.8p23) : S(0x1.8p52);

// 2^n for n + kToInteger, as long as it is a normal number.
GRADUS_HD float power_of_two(float shifted) {
  return detail::float_from_bits((detail::float_bits(shifted) << 23) + 0x3F800000u);
}
GRADUS_HD double power_of_two(double shifted) {
#ifdef __CUDA_ARCH__
  const auto bits = static_cast<uint64_t>(__double_as_longlong(shifted));
  return __longlong_as_double(static_cast<int64_t>((bits << 52) + 0x3FF0000000000000u));
#else
  const auto bits = std::bit_cast<uint64_t>(shifted);
  return std::bit_cast<double>((bits << 52) + 0x3FF0000000000000u);
#endif
}

// The smaller and the larger of two; NaN in x stays.
template <class V>
GRADUS_HD V at_most(V x, V high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<V, float>) {
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(high));
    return x;
  }
#endif
  return select(x > high, high, x);
}
template <class V>
GRADUS_HD V at_least(V x, V low) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<V, float>) {
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(low));
    return x;
  }
#endif
  return select(x < low, low, x);
}

// first + x·(second + x·(...)).
template <class V>
GRADUS_HD V polynomial(V, double last) {
  return V(static_cast<scalar_t<V>>(last));
}
template <class V, class... Rest>
GRADUS_HD V polynomial(V x, double first, Rest... rest) {
  return fused(polynomial(x, rest...), x, V(static_cast<scalar_t<V>>(first)));
}

// high + low, where low is what the rounding of high lost.
template <class V>
struct Two {
  V high;
  V low;
};

// a + b for |a| >= |b|.
template <class V>
GRADUS_HD Two<V> ordered_sum(V a, V b) {
  const V sum = a + b;
  return {sum, b - (sum - a)};
}
template <class V>
GRADUS_HD Two<V> sum_of(V a, V b) {
  const V sum = a + b, added = sum - a;
  return {sum, (a - (sum - added)) + (b - added)};
}

// numerator / denominator, rounded about once; neither may be infinite or the denominator 0.
template <class V>
GRADUS_HD V quotient_of(const Two<V>& numerator, const Two<V>& denominator) {
  const V reciprocal = reciprocal_of(denominator.high);
  const V q = numerator.high * reciprocal;
  const V rest =
      fused(-q, denominator.high, numerator.high) + fused(-q, denominator.low, numerator.low);
  return fused(rest, reciprocal, q);
}

// Takes back what f32 powers of two are multiplied by, 2^48, so that they are normal numbers.
inline constexpr float kUnscale = 0x1p-48f;

inline constexpr double kLog2E = 1.4426950408889634;
// -log2(e) in f32, and what it lacks.
inline constexpr float kMinusLog2E = -1.442695041f, kMinusLog2ELow = -1.925963033e-8f;

// x = n·ln 2 + r with |r| <= ln 2 / 2 and p = e^r - 1; n as n + kToInteger.
template <class V>
struct ExpParts {
  V shifted;
  Two<V> p;
};
template <class V>
GRADUS_HD ExpParts<V> exp_parts(V x, V low_part, bool has_low_part) {
  using S = scalar_t<V>;
  // The high part of ln 2 has zeros at its end: its product with n is exact.
  constexpr S high = kIsSingle<V> ? S(0x1.62e4p-1) : S(0x1.62e42fee00000p-1);
  constexpr S low = kIsSingle<V> ? S(1.42860677e-6) : S(1.90821492927058770e-10);
  const V shifted = fused(x, V(static_cast<S>(kLog2E)), V(kToInteger<S>));
  const V n = shifted - V(kToInteger<S>);
  V r = fused(n, V(-low), fused(n, V(-high), x));
  if (has_low_part) r = r + low_part;
  V q;
  if constexpr (kIsSingle<V>) {
    q = polynomial(r, 0.5000000014, 0.1666666668, 0.04166645681, 0.008333310024, 0.001393454193,
                   0.0001989198131);
  } else {
    q = polynomial(r, 0.5, 0.16666666666666671, 0.04166666666666667, 0.0083333333333255447,
                   0.0013888888888883327, 0.00019841269876864355, 2.4801587327007187e-5,
                   2.755725283351691e-6, 2.75572718102198e-7, 2.5106274733573295e-8,
                   2.0915442297780115e-9);
  }
  const V square = r * r, p = fused(square, q, r);
  return {shifted, {p, fused(square, q, r - p)}};
}

// e^x = (1 + p)·2^n, by two factors so that a subnormal result is rounded once.
template <class V>
GRADUS_HD Two<V> exp_scaled(const ExpParts<V>& parts) {
  using S = scalar_t<V>;
  const V n = parts.shifted - V(kToInteger<S>);
  const V half = fused(n, V(S(0.5)), V(kToInteger<S>));
  const V first = power_of_two(half);
  const V second = power_of_two(parts.shifted - (half - V(kToInteger<S>)));
  const Two<V> m = ordered_sum(V(S(1)), parts.p.high);
  return {m.high * first * second, (m.low + parts.p.low) * first * second};
}

// x, or an argument at which e^x is 0 where it is lower.
template <class V>
GRADUS_HD V clamp_exponent(V x) {
  return at_least(x, V(kIsSingle<V> ? scalar_t<V>(-104) : scalar_t<V>(-746)));
}

// e^x for x <= 80; subnormal results are kept, NaN stays NaN.
template <class V>
GRADUS_HD V exp_of(V x) {
  return exp_scaled(exp_parts(clamp_exponent(x), x, false)).high;
}
template <class V>
GRADUS_HD Two<V> exp_two(V x) {
  return exp_scaled(exp_parts(clamp_exponent(x), x, false));
}
// e^(x.high + x.low): an argument that one V is too short for. An error of half a last place in
// x = -80 would be one of 40 in the result.
template <class V>
GRADUS_HD Two<V> exp_two(const Two<V>& x) {
  return exp_scaled(exp_parts(clamp_exponent(x.high), x.low, true));
}

// 2^r - 1 in f32 for |r| <= 1/2, within 2^-27, rounded about once.
template <class V>
GRADUS_HD V power_minus_one(V r) {
  const V rest =
      polynomial(r, 0.2402264774, 0.0555035919, 0.009618504904, 0.001339124166, 0.0001532749739);
  return fused(r, V(0.6931471825f), product_of(r * r, rest));
}

// For x·s with s = 1 / (1 + e^-u) in f32, where u has the sign of x: without a branch or a sign. v
// is x, clamped to where s is neither 0 nor 1, and the denominator is scaled: nothing overflows.
// 2^-48 times 1 + 2^t and 2^t itself, for t = v·(slope + slope_low) from -78 to 174. With t = n + r
// the difference v·slope - n is rounded once by a fused multiply-add.
template <class V>
struct SwishParts {
  V denominator;
  V power;
};
template <class V>
GRADUS_HD SwishParts<V> swish_parts(V v, V slope, V slope_low) {
  constexpr float to_integer = kToInteger<float> - 48;
  const V shifted = fused(v, slope, V(to_integer)), n = shifted - V(to_integer);
  const V p = power_minus_one(fused(v, slope_low, product_error(v, slope, n)));
  const V scale = power_of_two(shifted);
  return {scale + fused(scale, p, V(kUnscale)), fused(scale, p, scale)};
}

// x·s, where floor is x, but at least the lower bound of v.
template <class V>
GRADUS_HD V swish_of(V floor, V v, const SwishParts<V>& parts) {
  const V reciprocal = reciprocal_of(parts.denominator), q = product_of(v, reciprocal);
  const V y = fused(fused(q, parts.denominator, -v), -reciprocal, q);  // -0 stays
  return fused(y, V(kUnscale), -(v - floor));
}

// Its gradient s·(1 + bend·(1 - s)), where bend = v·u'.
template <class V>
GRADUS_HD V swish_slope(V bend, const SwishParts<V>& parts) {
  V reciprocal = reciprocal_of(parts.denominator);
  if constexpr (!kIsRounded<V>) {  // it enters twice: half an ulp of it where it may be one
    reciprocal = fused(fused(-reciprocal, parts.denominator, V(1)), reciprocal, reciprocal);
  }
  return reciprocal * fused(bend, parts.power * reciprocal, V(1)) * V(kUnscale);
}

// e^x - 1 for x <= 88.
template <class V>
GRADUS_HD Two<V> expm1_two(V x) {
  using S = scalar_t<V>;
  const ExpParts<V> parts = exp_parts(at_least(x, V(S(-50))), x, false);
  const V scale = power_of_two(parts.shifted), below = scale - V(S(1));
  const V high = fused(scale, parts.p.high, below);
  return {high, fused(scale, parts.p.high, below - high) + scale * parts.p.low};
}

// 1 + e for 0 <= e <= 1.
template <class V>
GRADUS_HD Two<V> one_plus(const Two<V>& e) {
  const Two<V> sum = ordered_sum(V(scalar_t<V>(1)), e.high);
  return {sum.high, sum.low + e.low};
}

// 1 / (1 + e^-t) from e = e^-|t|: e / (1 + e) where t is negative.
template <class M, class V>
GRADUS_HD V sigmoid_of(M negative, const Two<V>& e) {
  using S = scalar_t<V>;
  const Two<V> numerator{select(negative, e.high, V(S(1))), select(negative, e.low, V(S(0)))};
  return quotient_of(numerator, one_plus(e));
}

// The same in f32 of t itself: e / (1 + e) for e = e^-|t|, and 1 less that where t is positive.
// With e = (1 + p)·2^n what the sum and its reciprocal round is taken back together with p; 2^n is
// scaled, so that it is a normal number.
template <class V>
GRADUS_HD V sigmoid_of(V t) {
  constexpr float to_integer = kToInteger<float> + 48;
  const V z = at_most(abs_of(t), V(104));  // e^-z is 0 there
  const V shifted = fused(z, V(kMinusLog2E), V(to_integer)), n = shifted - V(to_integer);
  const V p = power_minus_one(fused(z, V(kMinusLog2ELow), product_error(z, V(kMinusLog2E), n)));
  const V scale = power_of_two(shifted);
  const V power = scale * V(kUnscale);  // 2^n
  const Two<V> whole = ordered_sum(V(1), power);
  const V sum = fused(power, p, whole.high);  // 1 + e
  const V sum_low = fused(power, p, whole.high - sum) + whole.low;
  const V reciprocal = reciprocal_of(sum);
  // What the reciprocal lacks, as a part of it.
  const V rest = fused(-reciprocal, sum_low, -product_error(reciprocal, sum, V(1)));
  const V share = fused(reciprocal, p + fused(rest, p, rest), reciprocal) * scale * V(kUnscale);
  return select(t < V(0), share, V(1) - share);
}

// log(1 + x) for 0 <= x <= 1. With w = x / (2 + x) it is 2·atanh(w), and 2·w = x - x·w keeps the
// rounding of w out of the leading term.
template <class V>
GRADUS_HD V log1p_of(V x) {
  using S = scalar_t<V>;
  const V w = x * reciprocal_of(x + V(S(2)));
  const V square = w * w;
  V series;  // (atanh(w) - w) / w³
  if constexpr (kIsSingle<V>) {
    series = polynomial(square, 0.3333333366, 0.1999985317, 0.14296179, 0.108532879, 0.1161216461);
  } else {
    series = polynomial(square, 0.33333333333333333, 0.19999999999999761, 0.1428571428580005,
                        0.11111111099118385, 0.090909099489813572, 0.076922719824302746,
                        0.066675893157246279, 0.058671395306515987, 0.054225891974400074,
                        0.037460718977753837, 0.078152889004614252);
  }
  return x - w * fused(square * V(S(-2)), series, x);
}

template <class V>
GRADUS_HD V tanh_of(V x) {
  using S = scalar_t<V>;
  const Two<V> e = expm1_two(V(S(2)) * at_most(abs_of(x), V(S(20))));
  const Two<V> sum = sum_of(V(S(2)), e.high);
  return copysign_of(quotient_of(e, {sum.high, sum.low + e.low}), x);
}

}  // namespace gradus
