// Values of softmax kernels in registers, as they are stored, and the exponentials of them.
#pragma once

#include "core/dtype.h"
#include "cuda/device/round.cuh"

namespace gradus {

// N values of T as one access moves them: 16-bit values share a register.
template <class T, int N>
struct Raw {
  word_t<static_cast<int>(sizeof(T)) * N> word;

  __device__ __forceinline__ void load(const T* from) {
    word = *reinterpret_cast<const decltype(word)*>(from);
  }
  __device__ __forceinline__ void unpack(acc_t<T> (&values)[N]) const {
    T stored[N];
    memcpy(stored, &word, sizeof word);
#pragma unroll
    for (int j = 0; j < N; ++j) values[j] = static_cast<acc_t<T>>(stored[j]);
  }
  // Keeps the compiler from unpacking once for several uses, far apart: that takes twice the
  // registers of 16-bit values.
  __device__ __forceinline__ void forget_unpacked() {
    if constexpr (sizeof(T) == 2 && sizeof word == 16) {
      asm volatile("" : "+r"(word.x), "+r"(word.y), "+r"(word.z), "+r"(word.w));
    }
  }
};

struct SoftmaxMax {
  // Passes over NaN: the sum of the exponentials does not.
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
  __device__ __forceinline__ double operator()(double a, double b) const { return fmax(a, b); }
};

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
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(fmaf(z, 1.4426950408889634f, shift)));
    return e;
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
