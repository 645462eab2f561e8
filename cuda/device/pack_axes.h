// Packs counted along a few axes of strided tensors of one shape, whose places take a
// multiplication or two per axis: for threads that take one pack each, in the order of memory.
#pragma once

#include "cuda/device/strided_plan.h"

namespace gradus {

template <int X>
struct PackAxes {
  static constexpr int kAxes = 4;
  FastDivisor extents[kAxes];      // but for the first
  int64_t strides[X][kAxes] = {};  // in elements

  static bool take(const StridedPlan<X>& packs) { return packs.rank <= kAxes && packs.small; }
  PackAxes() = default;
  explicit PackAxes(const StridedPlan<X>& packs) {
    for (int axis = packs.rank - 1, to = kAxes - 1; axis >= 0; --axis, --to) {
      extents[to] = packs.divisors[axis];
      for (int t = 0; t < X; ++t) strides[t][to] = packs.strides[t][axis];
    }
  }
  // Where pack i lies in each tensor; the last axis is the fastest.
  GRADUS_HD StridedOffsets<X> offsets(uint32_t i) const {
    StridedOffsets<X> result{};
    for (int axis = kAxes - 1; axis >= 0; --axis) {
      const uint32_t rest = axis > 0 ? extents[axis].quotient(i) : 0;
      const uint32_t at = i - rest * extents[axis].divisor;
      for (int t = 0; t < X; ++t) result.at[t] += at * strides[t][axis];
      i = rest;
    }
    return result;
  }
};

}  // namespace gradus
