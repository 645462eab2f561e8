// Values of softmax kernels in registers, as they are stored, and the exponentials of them.
#pragma once

#include "core/dtype.h"
#include "cuda/device/math.cuh"
#include "cuda/device/raw.cuh"

namespace gradus {

struct SoftmaxMax {
  // Passes over NaN: the sum of the exponentials does not.
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
  __device__ __forceinline__ double operator()(double a, double b) const { return fmax(a, b); }
};

// The larger of each of two 16-bit values in a word; a number where the other one is NaN.
template <class T>
struct PairMax {
  static constexpr uint32_t kLeast = std::is_same_v<T, Half> ? 0xFC00FC00u : 0xFF80FF80u;  // -inf
  __device__ __forceinline__ uint32_t operator()(uint32_t a, uint32_t b) const {
    uint32_t larger;
    if constexpr (std::is_same_v<T, Half>) {
      asm("max.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    } else {
      asm("max.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    }
    return larger;
  }
};

// Where a maximum is -inf, all values are (or NaN): their exponentials are taken as they stand, so
// that a chunk without a finite value adds 0 and not NaN.
template <class A>
__device__ __forceinline__ A base_of(A max) {
  return max == A(-INFINITY) ? A(0) : max;
}

// The arithmetic behind results that are stored as T.
template <class T>
struct SoftmaxMath {
  using A = acc_t<T>;
  // Added to exponents of 2 for softmax, and gone after the division.
  static constexpr A kShift = A(0);
  static __device__ __forceinline__ A exp_of(A z, A) { return ::exp(z); }
  static __device__ __forceinline__ A log_of(A sum) { return ::log(sum); }
  static __device__ __forceinline__ A inverse(A sum) { return A(1) / sum; }
};

// f16 and bf16: the hardware's exp2, log2 and reciprocal, each within 2^-22. exp2 flushes what is
// below 2^-126, so it gets exponents that are 64 too large: results that are subnormal in bf16 are
// right then.
template <class T>
struct SoftmaxApproximate {
  static constexpr float kShift = 64.0f;
  static __device__ __forceinline__ float exp_of(float z, float shift) {
    return fast_exp2(fmaf(z, 1.4426950408889634f, shift));
  }
  // exp_of(v, shift_of(max)) is exp_of(v - max, kShift) but for what the rounding of the shift
  // gives as a factor: the same for all of a set, so that it is gone after the division too.
  static constexpr float kMostShifted = 0x1p20f;  // |max|, for a factor of at most 2^(1/16)
  static __device__ __forceinline__ float shift_of(float max) {
    return fmaf(max, -1.4426950408889634f, kShift);
  }
  static __device__ __forceinline__ float log_of(float sum) {
    float log2;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(log2) : "f"(sum));
    return log2 * 0.6931471805599453f;
  }
  static __device__ __forceinline__ float inverse(float sum) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(sum));
    return result;
  }
};
template <>
struct SoftmaxMath<Half> : SoftmaxApproximate<Half> {};
template <>
struct SoftmaxMath<BFloat16> : SoftmaxApproximate<BFloat16> {};

// exp of an output of log_softmax. In 16 bits within 2^-22 + |y|·2^-24, subnormals kept.
template <class T>
__device__ __forceinline__ acc_t<T> exp_of_output(acc_t<T> y) {
  if constexpr (sizeof(T) == 2) {
    float e;
    asm("ex2.approx.f32 %0, %1;" : "=f"(e) : "f"(y * 1.4426950408889634f));
    return e;
  } else {
    return ::exp(y);
  }
}

}  // namespace gradus
