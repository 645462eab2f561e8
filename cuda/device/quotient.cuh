// Division of indices that nearly always, but not always, fit 31 bits.
#pragma once

#include "cuda/device/strided_plan.h"

namespace gradus {

// i / d for any i >= 0.
__device__ __forceinline__ int64_t quotient(const FastDivisor& d, int64_t i) {
  return i <= INT32_MAX ? static_cast<int64_t>(d.quotient(static_cast<uint32_t>(i)))
                        : i / d.divisor;
}

}  // namespace gradus
