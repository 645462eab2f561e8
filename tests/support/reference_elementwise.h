// Naive arithmetic with broadcasting, ReLU and dropout.
#pragma once

#include "tests/support/reference_array.h"

namespace gradus::ref {

Array add(const Array& a, const Array& b);
Array sub(const Array& a, const Array& b);
Array mul(const Array& a, const Array& b);
Array div(const Array& a, const Array& b);

struct PairGradients {
  Array da;  // shape of a: summed over the axes that a was repeated along
  Array db;  // shape of b
};

PairGradients add_backward(const Array& a, const Array& b, const Array& dy);
PairGradients sub_backward(const Array& a, const Array& b, const Array& dy);
PairGradients mul_backward(const Array& a, const Array& b, const Array& dy);
PairGradients div_backward(const Array& a, const Array& b, const Array& dy);

// max(x, 0), NaN for NaN. Its gradient is dy where x > 0, else 0 (at 0 too); NaN lets dy pass.
Array relu(const Array& x);
Array relu_backward(const Array& x, const Array& dy);

// x / (1 - p) where mask is 1, 0 where it is 0; all 0 for p = 1.
Array dropout(const Array& x, const Array& mask, double p);
Array dropout_backward(const Array& dy, const Array& mask, double p);

}  // namespace gradus::ref
