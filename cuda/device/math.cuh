// What the formulas of core/ops/ ask of a backend, on the device.
#pragma once

#include <cmath>

#include "core/host_device.h"

namespace gradus {

// 2^x by the hardware's instruction, within 2^-22; 0 below 2^-126.
__device__ __forceinline__ float fast_exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

struct DeviceMath {
  GRADUS_HD static float exp(float x) { return expf(x); }
  GRADUS_HD static double exp(double x) { return ::exp(x); }

  // An addend of a sum that holds a 1: 2^(x log2 e) with one instruction for the power. For x <= 0
  // it is off by at most 2^-22 + |x| 2^-24 relative, so by less than 2^-22 in the sum; results
  // below the normal numbers are 0.
  GRADUS_HD static float exp_term(float x) {
#ifdef __CUDA_ARCH__
    return fast_exp2(x * kLog2E);
#else
    return expf(x);
#endif
  }
  GRADUS_HD static double exp_term(double x) { return ::exp(x); }
  // The function x -> exp_term(x - s).
  template <class A>
  GRADUS_HD static auto exp_terms(A s) {
    return [s](A x) { return exp_term(x - s); };
  }

  // part / whole of two counts, within 2^-22.
  GRADUS_HD static float share(float part, float whole) {
#ifdef __CUDA_ARCH__
    float reciprocal;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(whole));
    return part * reciprocal;
#else
    return part / whole;
#endif
  }
  GRADUS_HD static double share(double part, double whole) { return part / whole; }

  template <class A>
  GRADUS_HD static A ratio(A a, A b) {
    return a / b;
  }

  GRADUS_HD static float log(float x) { return logf(x); }
  GRADUS_HD static double log(double x) { return ::log(x); }
  GRADUS_HD static float sqrt(float x) { return sqrtf(x); }
  GRADUS_HD static double sqrt(double x) { return ::sqrt(x); }

  // NaN if either is.
  GRADUS_HD static float larger(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
#else
    return a > b || a != a ? a : b;
#endif
  }
  GRADUS_HD static double larger(double a, double b) { return a > b || a != a ? a : b; }
  GRADUS_HD static float smaller(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    float result;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
#else
    return a < b || a != a ? a : b;
#endif
  }
  GRADUS_HD static double smaller(double a, double b) { return a < b || a != a ? a : b; }

 protected:
  static constexpr float kLog2E = 1.4426950408889634F;
};

// For results that are rounded to 16 bits: exp as exp_term, which is right to 2^-22 + |x| 2^-24
// relative; below the smallest normal float it is 0. A ratio by the hardware's reciprocal: b and
// 1 / b are normal numbers.
struct DeviceHalfMath : DeviceMath {
  GRADUS_HD static float exp(float x) { return exp_term(x); }
  // For x and s of 16 bits, with one instruction less: off by |s| 2^-23 relative more, alike for
  // all terms of a sum, whose logarithm plus s is then off by less than s's next number in f32.
  // From 2^16 on, where that would leave the floats, bf16 are s itself or so far away that their
  // term is 0. is_below: |s| < 2^16.
  GRADUS_HD static auto exp_terms(float s, [[maybe_unused]] bool is_below) {
#ifdef __CUDA_ARCH__
    const float scale = is_below ? kLog2E : 1.0F, offset = -s * scale;
    return [=](float x) { return fast_exp2(fmaf(x, scale, offset)); };
#else
    return DeviceMath::exp_terms(s);
#endif
  }
  GRADUS_HD static auto exp_terms(float s) { return exp_terms(s, fabsf(s) < 65536); }
  GRADUS_HD static float ratio(float a, float b) { return share(a, b); }
};

}  // namespace gradus
