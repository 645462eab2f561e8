// Naive matrix product and linear layer.
#pragma once

#include "tests/support/reference_array.h"

namespace gradus::ref {

// a [..., i, k], b [..., k, j] -> [..., i, j]; the leading axes broadcast.
Array matmul(const Array& a, const Array& b);

struct MatmulGradients {
  Array da;  // shape of a: summed over the axes that a was repeated along
  Array db;  // shape of b
};
MatmulGradients matmul_backward(const Array& a, const Array& b, const Array& dy);

// y[..., o] = sum over i of x[..., i] * w[o, i] + b[o]; b [o] may be absent.
Array linear(const Array& x, const Array& w, const Array& b);

struct LinearGradients {
  Array dx;  // shape of x
  Array dw;  // [o, i]
  Array db;  // [o]
};
LinearGradients linear_backward(const Array& x, const Array& w, const Array& dy);

}  // namespace gradus::ref
