// Naive reductions over any axes, each with its gradient.
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

// NaN wins over every number. A set without values is an std::invalid_argument.
Array max(const Array& x, const std::vector<int>& axes, bool keepdim = false);
Array min(const Array& x, const std::vector<int>& axes, bool keepdim = false);
// 1 without values.
Array prod(const Array& x, const std::vector<int>& axes, bool keepdim = false);
// sqrt(sum x^2), 0 without values.
Array norm2(const Array& x, const std::vector<int>& axes, bool keepdim = false);
// log(sum exp x); -inf without values and where all are -inf; +inf where one is.
Array logsumexp(const Array& x, const std::vector<int>& axes, bool keepdim = false);
// sum (x - mean)^2 / max(0, m - correction) of m values: NaN without values and for one value with
// correction 1 (0/0), +inf where values spread and the divisor is 0.
Array var(const Array& x, const std::vector<int>& axes, double correction, bool keepdim = false);
Array std_(const Array& x, const std::vector<int>& axes, double correction, bool keepdim = false);

// Equal largest (smallest) values share dy equally; where the result is NaN, the NaNs do.
Array max_backward(const Array& x, const Array& dy, const std::vector<int>& axes);
Array min_backward(const Array& x, const Array& dy, const std::vector<int>& axes);
// dy times the product of all others: exact with any number of zeros.
Array prod_backward(const Array& x, const Array& dy, const std::vector<int>& axes);
// 0 where the norm is 0.
Array norm2_backward(const Array& x, const Array& dy, const std::vector<int>& axes);
Array logsumexp_backward(const Array& x, const Array& dy, const std::vector<int>& axes);
Array var_backward(const Array& x, const Array& dy, const std::vector<int>& axes,
                   double correction);
// 0 where std is 0.
Array std_backward(const Array& x, const Array& dy, const std::vector<int>& axes,
                   double correction);

}  // namespace gradus::ref
