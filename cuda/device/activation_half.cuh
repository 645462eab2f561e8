// float as the value type of activations whose results are rounded to 16 bits: the hardware's exp2
// and reciprocal, good to 2^-22, replace the exact ones, and no argument needs a second part.
#pragma once

#include "core/ops/activation_math.h"

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
// Exact 0 for a finite a and an infinite b, like the division it stands for.
__device__ __forceinline__ HalfReal operator/(HalfReal a, HalfReal b) {
  float reciprocal;
  asm("rcp.approx.f32 %0, %1;" : "=f"(reciprocal) : "f"(b.v));
  return HalfReal(a.v * reciprocal);
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
// Relative error |x|·2^-24 + 2^-22.
__device__ __forceinline__ HalfReal exp_of(HalfReal x) {
  float result;
  asm("ex2.approx.f32 %0, %1;" : "=f"(result) : "f"(x.v * 1.4426950408889634f));
  return HalfReal(result);
}
__device__ __forceinline__ Two<HalfReal> exp_two(HalfReal x) { return {exp_of(x), HalfReal(0)}; }
__device__ __forceinline__ Two<HalfReal> exp_two(const Two<HalfReal>& x) {
  return {exp_of(x.high), HalfReal(0)};
}
__device__ __forceinline__ HalfReal quotient_of(const Two<HalfReal>& numerator,
                                                const Two<HalfReal>& denominator) {
  return numerator.high / denominator.high;
}

}  // namespace gradus
