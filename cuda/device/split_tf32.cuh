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

// big is x rounded to nearest, ties away from zero, but never from a finite x to infinity. Infinity
// is 1 and infinity: every product of its parts then is finite or what the whole product is, while
// infinity and 0 would make it NaN. NaN stays NaN.
__device__ __forceinline__ SplitFloat split_tf32(float x) {
  constexpr float kRoundsToInfinity = 3.4019929e38f;  // 2^128 - 2^116
  if (fabsf(x) == INFINITY) return {copysignf(1.0f, x), x};
  uint32_t bits = __float_as_uint(x);
  if (fabsf(x) < kRoundsToInfinity) bits += 0x1000;
  const float big = __uint_as_float(bits & 0xFFFFE000u);
  return {big, x - big};
}

}  // namespace gradus
