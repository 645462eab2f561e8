// Walking a few strided tensors of one shape together, as the CPU's cpu/strided.h does:
// neighbouring axes that all of them step through evenly are merged, so that tensors of one layout
// become one flat run. Made on the host, read by kernels.
#pragma once

#include <array>
#include <cstdint>

#include "core/host_device.h"
#include "core/shape.h"

namespace gradus {

// Division of 0 <= i < 2^31 by a number fixed beforehand, as a multiplication and a shift
// (Granlund and Montgomery, Division by Invariant Integers using Multiplication, 1994).
struct FastDivisor {
  uint32_t divisor = 1;
  uint32_t multiplier = 1;
  uint32_t shift = 0;

  FastDivisor() = default;
  explicit FastDivisor(uint32_t d) : divisor(d) {  // 1 to 2^31
    while ((uint64_t(1) << shift) < d) ++shift;
    multiplier =
        static_cast<uint32_t>(((uint64_t(1) << 32) * ((uint64_t(1) << shift) - d)) / d + 1);
  }

  GRADUS_HD uint32_t quotient(uint32_t i) const {
#ifdef __CUDA_ARCH__
    const uint32_t high = __umulhi(i, multiplier);
#else
    const uint32_t high = static_cast<uint32_t>((uint64_t(i) * multiplier) >> 32);
#endif
    return (high + i) >> shift;
  }
};

template <int N>
struct StridedOffsets {
  int64_t at[N];  // in elements, per tensor
};

template <int N>
struct StridedPlan {
  int64_t count = 0;   // elements
  int rank = 0;        // after merging; axis rank - 1 is walked fastest
  bool flat = false;   // element i lies at offset i of every tensor
  bool small = false;  // count < 2^31: indices fit 32 bits and FastDivisor
  int64_t extents[kMaxRank] = {};
  int64_t strides[N][kMaxRank] = {};
  FastDivisor divisors[kMaxRank];

  StridedPlan() = default;
  // The tensor whose strides come first decides the order: the written one should.
  StridedPlan(const Shape& shape, const std::array<Strides, N>& tensors);

  // Where element i, counted in walking order, lies in each tensor.
  GRADUS_HD StridedOffsets<N> offsets(int64_t i) const {
    StridedOffsets<N> result;
    if (flat) {
      for (int t = 0; t < N; ++t) result.at[t] = i;
      return result;
    }
    for (int t = 0; t < N; ++t) result.at[t] = 0;
    for (int axis = rank - 1; axis >= 0; --axis) {
      int64_t index = i;
      if (axis > 0) {
        const int64_t rest =
            small ? static_cast<int64_t>(divisors[axis].quotient(static_cast<uint32_t>(i)))
                  : i / extents[axis];
        index = i - rest * extents[axis];
        i = rest;
      }
      for (int t = 0; t < N; ++t) result.at[t] += index * strides[t][axis];
    }
    return result;
  }
};

template <int N>
StridedPlan<N>::StridedPlan(const Shape& shape, const std::array<Strides, N>& tensors)
    : count(shape.numel()), small(count < (int64_t(1) << 31)) {
  // Axes from the largest stride of the first tensor to the smallest; equal ones stay as they are.
  int order[kMaxRank];
  int axes = 0;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] == 1) continue;
    int at = axes++;
    for (; at > 0 && tensors[0][order[at - 1]] < tensors[0][axis]; --at) order[at] = order[at - 1];
    order[at] = axis;
  }
  for (int i = 0; i < axes; ++i) {
    const int axis = order[i];
    bool merges = rank > 0;
    for (int t = 0; t < N && merges; ++t) {
      merges = strides[t][rank - 1] == tensors[t][axis] * shape[axis];
    }
    if (!merges) extents[rank++] = 1;
    extents[rank - 1] *= shape[axis];
    for (int t = 0; t < N; ++t) strides[t][rank - 1] = tensors[t][axis];
  }
  flat = rank <= 1;
  for (int t = 0; t < N; ++t) flat = flat && (rank == 0 || strides[t][0] == 1);
  if (small && count > 0) {
    for (int axis = 0; axis < rank; ++axis) {
      divisors[axis] = FastDivisor(static_cast<uint32_t>(extents[axis]));
    }
  }
}

}  // namespace gradus
