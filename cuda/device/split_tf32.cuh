// f32 as the sum of two parts that TF32 holds: x·w is then big·big + big·small + small·big on the
// tensor cores, with an error of about 2^-22.
#pragma once

#include <cmath>
#include <cstdint>

namespace gradus {

struct SplitFloat {
  float big;    // 11 significant bits
  float small;  // x - big, exact; of its 12 bits the tensor cores drop the last one
};

// Products of 8 terms that the tensor cores add up in one sum: they cut their sums off.
inline constexpr int kSplitSteps = 4;

inline constexpr float kRoundsToInfinity = 3.4019929e38f;  // 2^128 - 2^116

// big is x rounded to nearest, ties away from zero, but never from a finite x to infinity. Infinity
// is 1 and infinity: every product of its parts then is finite or what the whole product is, while
// infinity and 0 would make it NaN, as do infinity and what is below 2^-137, whose big is 0. NaN
// stays NaN.
__device__ __forceinline__ SplitFloat split_tf32(float x) {
  if (fabsf(x) == INFINITY) return {copysignf(1.0f, x), x};
  uint32_t bits = __float_as_uint(x);
  if (fabsf(x) < kRoundsToInfinity) bits += 0x1000;
  const float big = __uint_as_float(bits & 0xFFFFE000u);
  return {big, x - big};
}

// The same of many values at once, as words: where all of them round to finite numbers, as nearly
// always, that takes half the instructions.
template <int Count>
__device__ __forceinline__ void split_tf32(const uint32_t (&x)[Count], uint32_t (&big)[Count],
                                           uint32_t (&small)[Count]) {
  bool finite = true;
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    finite = finite && fabsf(__uint_as_float(x[i])) < kRoundsToInfinity;
    big[i] = (x[i] + 0x1000) & 0xFFFFE000u;
    small[i] = __float_as_uint(__uint_as_float(x[i]) - __uint_as_float(big[i]));
  }
  if (finite) return;
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    const SplitFloat parts = split_tf32(__uint_as_float(x[i]));
    big[i] = __float_as_uint(parts.big), small[i] = __float_as_uint(parts.small);
  }
}

}  // namespace gradus
