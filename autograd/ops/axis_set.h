// Which axes a reduction runs over, and the shapes of its result.
#pragma once

#include <array>
#include <vector>

#include "core/tensor.h"

namespace gradus {

using AxisSet = std::array<bool, kMaxRank>;

// All axes when none is given; throws naming `op` for an axis out of range or named twice.
AxisSet axis_set(const Tensor& x, const std::vector<int>& axes, std::string_view op);

struct ReducedShapes {
  Shape kept;         // extents of 1 along the reduced axes
  Shape result;       // the same, without them unless keepdim
  int64_t count = 1;  // elements that reduce to one
};

ReducedShapes reduced_shapes(const Shape& shape, const AxisSet& axes, bool keepdim);

}  // namespace gradus
