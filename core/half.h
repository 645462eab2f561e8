// The two 16-bit storage types. They store; arithmetic happens in acc_t (float).
//
// Half      IEEE binary16: 1 sign, 5 exponent, 10 mantissa bits.
// BFloat16  the upper half of a float: 1 sign, 8 exponent, 7 mantissa bits.
//
// Conversions round to nearest, ties to even, and keep subnormals; host and device give the same
// bits for every number. NaN stays one: as Half 0x7FFF, as BFloat16 it keeps its sign and is quiet.
#pragma once

#include <bit>
#include <cstdint>

#include "core/host_device.h"

namespace gradus {

namespace detail {

GRADUS_HD uint32_t float_bits(float value) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(value);
#else
  return std::bit_cast<uint32_t>(value);
#endif
}

GRADUS_HD float float_from_bits(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

GRADUS_HD uint16_t half_bits(float value) {
#ifdef __CUDA_ARCH__
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
#else
  const uint32_t bits = float_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(0x7FFFu);  // NaN, as the device gives
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // rounds to inf
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 puts the half's last place at the float's last place, rounding once.
    const float shifted = float_from_bits(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (float_bits(shifted) - 0x3F000000u));
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u) - 0x38000000u;
  return static_cast<uint16_t>(sign | (rounded >> 13));
#endif
}

GRADUS_HD float half_value(uint16_t bits) {
#ifdef __CUDA_ARCH__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7FFFu;
  if (magnitude >= 0x7C00u)
    return float_from_bits(sign | 0x7F800000u | ((magnitude & 0x3FFu) << 13));
  if (magnitude >= 0x0400u) return float_from_bits(sign | ((magnitude << 13) + 0x38000000u));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return float_from_bits(sign | float_bits(subnormal));
#endif
}

GRADUS_HD uint16_t bfloat16_bits(float value) {
  const uint32_t bits = float_bits(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// double to float, rounding to odd: a second rounding to 16 bits is then exact to the double.
GRADUS_HD float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  const double error = value - static_cast<double>(nearest);
  uint32_t bits = float_bits(nearest);
  const bool exact = error == 0.0 || error != error || (bits & 0x7F800000u) == 0x7F800000u;
  if (exact || (bits & 1u)) return nearest;
  const bool away = (error > 0.0) == (value > 0.0);  // the true value lies further from zero
  bits = away ? bits + 1 : bits - 1;
  return float_from_bits(bits);
}

}  // namespace detail

struct Half {
  uint16_t bits = 0;

  Half() = default;
  GRADUS_HD explicit Half(float value) : bits(detail::half_bits(value)) {}
  GRADUS_HD explicit Half(double value) : Half(detail::round_to_odd(value)) {}
  GRADUS_HD explicit operator float() const { return detail::half_value(bits); }
  GRADUS_HD explicit operator double() const {
    return static_cast<double>(detail::half_value(bits));
  }
};

struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  GRADUS_HD explicit BFloat16(float value) : bits(detail::bfloat16_bits(value)) {}
  GRADUS_HD explicit BFloat16(double value) : BFloat16(detail::round_to_odd(value)) {}
  GRADUS_HD explicit operator float() const {
    return detail::float_from_bits(static_cast<uint32_t>(bits) << 16);
  }
  GRADUS_HD explicit operator double() const {
    return static_cast<double>(static_cast<float>(*this));
  }
};

}  // namespace gradus
