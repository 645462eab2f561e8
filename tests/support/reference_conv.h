// Naive 2-D convolution, x [n, c, h, w] with weights [k, c/groups, r, s].
#pragma once

#include "tests/support/reference_array.h"

namespace gradus::ref {

struct Conv2dOptions {
  int64_t stride_h = 1, stride_w = 1;
  int64_t padding_h = 0, padding_w = 0;
  int64_t dilation_h = 1, dilation_w = 1;
  int64_t groups = 1;
};

// Cross-correlation, zeros outside x, f the first input channel of k's group; b [k] may be absent:
//   y[n,k,p,q] = b[k] + sum over c, r, s of w[k,c,r,s] * x[n, f + c, row, column]
//   row = p * stride_h - padding_h + r * dilation_h, column likewise from q and s
Array conv2d(const Array& x, const Array& w, const Array& b, const Conv2dOptions& options);

struct Conv2dGradients {
  Array dx;  // [n, c, h, w]
  Array dw;  // [k, c/groups, r, s]
  Array db;  // [k]
};

// Every product of the forward hands its share of dy to both of its factors.
Conv2dGradients conv2d_backward(const Array& x, const Array& w, const Array& dy,
                                const Conv2dOptions& options);

}  // namespace gradus::ref
