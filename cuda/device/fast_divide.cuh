// Division by a number known on the host, as a multiplication and a shift.
// Source: Granlund and Montgomery 1994, https://doi.org/10.1145/178243.178249.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace gradus {

// For numerators and divisors below 2^31.
struct FastDivide {
  uint32_t divisor = 1;
  uint32_t factor = 0;
  uint32_t shift = 0;

  FastDivide() = default;
  explicit FastDivide(uint32_t d) : divisor(d) {
    while ((uint64_t{1} << shift) < d) ++shift;
    factor = static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << shift) - d)) / d + 1);
  }

  GRADUS_HD uint32_t quotient(uint32_t n) const {
#ifdef __CUDA_ARCH__
    const uint32_t high = __umulhi(n, factor);
#else
    const uint32_t high = static_cast<uint32_t>((uint64_t{n} * factor) >> 32);
#endif
    return (high + n) >> shift;
  }
  GRADUS_HD uint32_t remainder(uint32_t n) const { return n - quotient(n) * divisor; }
};

// The same by plain division, for tensors beyond 2^31 elements.
struct WideDivide {
  uint64_t divisor = 1;

  WideDivide() = default;
  explicit WideDivide(uint64_t d) : divisor(d) {}
  GRADUS_HD uint64_t quotient(uint64_t n) const { return n / divisor; }
  GRADUS_HD uint64_t remainder(uint64_t n) const { return n % divisor; }
};

}  // namespace gradus
