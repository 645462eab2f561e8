// float as the value type of activations whose results are rounded to 16 bits: the hardware's exp2
// and reciprocal, good to 2^-22, replace the exact ones, and no argument needs a second part.
#pragma once

#include "core/ops/activation_math.h"
#include "cuda/device/math.cuh"

namespace gradus {

struct HalfReal {
  float v;
  HalfReal() = default;
  template <class N>
  __device__ __forceinline__ explicit HalfReal(N value) : v(static_cast<float>(value)) {}
};
template <>
struct ScalarOf<HalfReal> {
  using type = float;
};

template <>
inline constexpr bool kIsRounded<HalfReal> = true;

// What formulas of values that are stored as T are computed in.
template <class T>
using Real = std::conditional_t<sizeof(T) == 2, HalfReal, T>;

template <class A, class V>
__device__ __forceinline__ A to_acc(V value) {
  if constexpr (std::is_same_v<V, HalfReal>) {
    return value.v;
  } else {
    return value;
  }
}

__device__ __forceinline__ HalfReal operator+(HalfReal a, HalfReal b) {
  return HalfReal(a.v + b.v);
}
__device__ __forceinline__ HalfReal operator-(HalfReal a, HalfReal b) {
  return HalfReal(a.v - b.v);
}
__device__ __forceinline__ HalfReal operator*(HalfReal a, HalfReal b) {
  return HalfReal(a.v * b.v);
}
__device__ __forceinline__ HalfReal operator-(HalfReal a) { return HalfReal(-a.v); }
__device__ __forceinline__ HalfReal reciprocal_of(HalfReal x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x.v));
  return HalfReal(result);
}
__device__ __forceinline__ HalfReal operator/(HalfReal a, HalfReal b) {
  return a * reciprocal_of(b);
}
__device__ __forceinline__ bool operator<(HalfReal a, HalfReal b) { return a.v < b.v; }
__device__ __forceinline__ bool operator>(HalfReal a, HalfReal b) { return a.v > b.v; }
__device__ __forceinline__ bool operator<=(HalfReal a, HalfReal b) { return a.v <= b.v; }
__device__ __forceinline__ bool operator>=(HalfReal a, HalfReal b) { return a.v >= b.v; }

__device__ __forceinline__ HalfReal select(bool condition, HalfReal a, HalfReal b) {
  return condition ? a : b;
}
__device__ __forceinline__ HalfReal fused(HalfReal a, HalfReal b, HalfReal c) {
  return HalfReal(fmaf(a.v, b.v, c.v));
}
__device__ __forceinline__ HalfReal product_of(HalfReal a, HalfReal b) { return a * b; }
__device__ __forceinline__ HalfReal product_error(HalfReal, HalfReal, HalfReal) {
  return HalfReal(0.0f);
}
__device__ __forceinline__ HalfReal abs_of(HalfReal x) { return HalfReal(fabsf(x.v)); }
__device__ __forceinline__ HalfReal copysign_of(HalfReal x, HalfReal sign) {
  return HalfReal(copysignf(x.v, sign.v));
}
__device__ __forceinline__ HalfReal power_of_two(HalfReal shifted) {
  return HalfReal(power_of_two(shifted.v));
}
// As the square of e^(x/2): the instruction flushes subnormal results, the product does not.
// Relative error |x|·2^-24 + 2^-21.
__device__ __forceinline__ HalfReal exp_of(HalfReal x) {
  const float root = fast_exp2(x.v * 0.72134752044448170f);
  return HalfReal(root * root);
}
__device__ __forceinline__ Two<HalfReal> exp_two(HalfReal x) { return {exp_of(x), HalfReal(0)}; }
__device__ __forceinline__ Two<HalfReal> exp_two(const Two<HalfReal>& x) {
  return {exp_of(x.high), HalfReal(0)};
}
__device__ __forceinline__ HalfReal quotient_of(const Two<HalfReal>& numerator,
                                                const Two<HalfReal>& denominator) {
  return numerator.high / denominator.high;
}

// (z + 2) times P(Z > z) / e^(-z²/2) as a polynomial in (z - 2) / (z + 2), within 5e-5 of its
// value.
__device__ __forceinline__ HalfReal normal_share(HalfReal z) {
  const HalfReal reciprocal = reciprocal_of(z + HalfReal(2)), q = (z - HalfReal(2)) * reciprocal;
  return z * reciprocal *
         polynomial(q, 0.672408005, -0.331304741, 0.0288602008, 0.0359234026, -0.000988795588,
                    -0.00516108944, -0.000814977747);
}
// (1 - e) / (1 + e) with e = e^(-2|x|), which cancels for small x: the series there.
__device__ __forceinline__ HalfReal tanh_of(HalfReal x) {
  const HalfReal e = exp_of(abs_of(x) * HalfReal(-2)), one(1);
  const HalfReal ratio = (one - e) * reciprocal_of(one + e);
  const HalfReal series = fused(x * x * x, HalfReal(-1.0f / 3), x);  // of -0: 0
  return copysign_of(select(abs_of(x) < HalfReal(0x1p-5f), series, ratio), x);
}

__device__ __forceinline__ HalfReal at_most(HalfReal x, HalfReal high) {
  return HalfReal(DeviceMath::smaller(x.v, high.v));
}
__device__ __forceinline__ HalfReal at_least(HalfReal x, HalfReal low) {
  return HalfReal(DeviceMath::larger(x.v, low.v));
}
__device__ __forceinline__ SwishParts<HalfReal> swish_parts(HalfReal v, HalfReal slope, HalfReal) {
  const float power = fast_exp2(fmaf(v.v, slope.v, -48.0f));
  return {HalfReal(power + kSwishScale), HalfReal(power)};
}
__device__ __forceinline__ HalfReal swish_of(HalfReal floor, HalfReal,
                                             const SwishParts<HalfReal>& parts) {
  return floor * (reciprocal_of(parts.denominator) * HalfReal(kSwishScale));
}

}  // namespace gradus
