// Naive sum and mean over any axes.
#pragma once

#include <vector>

#include "tests/support/reference_array.h"

namespace gradus::ref {

// Axes may be negative; none given means all. Without keepdim the reduced axes are dropped.
Array sum(const Array& x, const std::vector<int>& axes, bool keepdim = false);
Array mean(const Array& x, const std::vector<int>& axes, bool keepdim = false);

// dy may come with or without the kept axes; dx has the given shape.
Array sum_backward(const Shape& shape, const Array& dy, const std::vector<int>& axes);
Array mean_backward(const Shape& shape, const Array& dy, const std::vector<int>& axes);

}  // namespace gradus::ref
