// Naive max pooling over x [n, c, h, w].
#pragma once

#include "tests/support/reference_array.h"

namespace gradus::ref {

struct MaxPool2dOptions {
  int64_t kernel_h = 2, kernel_w = 2;
  int64_t stride_h = 2, stride_w = 2;
  int64_t padding_h = 0, padding_w = 0;
  int64_t dilation_h = 1, dilation_w = 1;
  bool ceil_mode = false;  // a last window may overhang, but it must start inside x or its padding
};

struct MaxPool2d {
  Array y;        // [n, c, p, q]
  Array indices;  // [n, c, p, q]: h * width + w of the winner within its plane
};

// The largest value of each window. The first of equal values wins, and the first NaN over all
// numbers. Padding never wins.
MaxPool2d max_pool2d(const Array& x, const MaxPool2dOptions& options);

// dx: each winner gets the dy of its windows.
Array max_pool2d_backward(const Array& x, const Array& dy, const MaxPool2dOptions& options);

}  // namespace gradus::ref
