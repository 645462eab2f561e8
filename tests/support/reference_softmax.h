// Naive softmax and log-softmax over one axis.
#pragma once

#include "tests/support/reference_array.h"

namespace gradus::ref {

// exp(x - max) / sum exp(x - max); axis may be negative. NaN in the row, +inf in it, and -inf
// everywhere make the whole row NaN.
Array softmax(const Array& x, int axis);
// x - max - log sum exp(x - max).
Array log_softmax(const Array& x, int axis);

Array softmax_backward(const Array& x, int axis, const Array& dy);
Array log_softmax_backward(const Array& x, int axis, const Array& dy);

}  // namespace gradus::ref
