// float as the value type of activations whose results are rounded to 16 bits: the hardware's exp2
// and reciprocal, good to 2^-22, replace the exact ones, and no argument needs a second part.
#pragma once

#include "core/ops/normal_tail.h"
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
__device__ __forceinline__ HalfReal quotient_of(const Two<HalfReal>& numerator,
                                                const Two<HalfReal>& denominator) {
  return numerator.high / denominator.high;
}

template <>
struct NormalTail<HalfReal> {
  using Exact = NormalTail<float>;
  static constexpr float kMost = Exact::kMost;

  HalfReal z, power;  // 2^48 times e^(-z²/2)

  __device__ __forceinline__ explicit NormalTail(HalfReal z)
      : z(z), power(fast_exp2(fmaf(z.v * z.v, Exact::kSlope, 48.0f))) {}
  // (z + 3)·P(Z > z) / e^(-z²/2), within 2^-15.4, for (z - 3) / (z + 3).
  __device__ __forceinline__ HalfReal product() const {
    const HalfReal reciprocal = reciprocal_of(z + HalfReal(3));
    return polynomial(fused(HalfReal(-6), reciprocal, HalfReal(1)), 0.729090363, -0.509423521,
                      0.229867929, -0.0463565568, -0.0098075778, 0.00495766836) *
           (z * reciprocal) * power;
  }
  // (z + 4)·P(Z > z) / e^(-z²/2), within 2^-20.7, for (z - 4) / (z + 4): two terms cancel.
  __device__ __forceinline__ HalfReal bend() const {
    const HalfReal reciprocal = reciprocal_of(z + HalfReal(4));
    const HalfReal share =
        reciprocal * polynomial(fused(HalfReal(-8), reciprocal, HalfReal(1)), 0.755285227,
                                -0.60789285, 0.387129329, -0.186594543, 0.0604645905,
                                -0.00716069483, -0.00357071874, 0.000957483033);
    return fused(z, HalfReal(-Exact::kDensity), share) * power;
  }
};
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
  return {HalfReal(power + kUnscale), HalfReal(power)};
}
__device__ __forceinline__ HalfReal swish_of(HalfReal floor, HalfReal,
                                             const SwishParts<HalfReal>& parts) {
  return floor * (reciprocal_of(parts.denominator) * HalfReal(kUnscale));
}

}  // namespace gradus
