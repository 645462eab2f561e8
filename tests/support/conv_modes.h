// What conv2d is tested in, and values that are exact in all of it.
#pragma once

#include <cstdint>
#include <ostream>
#include <vector>

#include "autograd/autocast.h"

namespace gradus {

struct ConvMode {
  const char* name;
  DType dtype;
  MatmulPrecision precision = MatmulPrecision::strict;
};
inline void PrintTo(const ConvMode& mode, std::ostream* out) { *out << mode.name; }
inline constexpr ConvMode kConvModes[] = {{"f32", DType::f32},
                                          {"tf32", DType::f32, MatmulPrecision::tf32},
                                          {"f16", DType::f16},
                                          {"bf16", DType::bf16}};

// Multiples of 1/8 of at most 1: exact in every dtype, with exact products and sums.
inline std::vector<double> draw_eighths(int64_t count, uint32_t seed) {
  std::vector<double> values(static_cast<size_t>(count));
  for (double& value : values) {
    seed = seed * 1664525u + 1013904223u;
    value = (static_cast<int>(seed >> 24) % 17 - 8) / 8.0;
  }
  return values;
}

}  // namespace gradus
