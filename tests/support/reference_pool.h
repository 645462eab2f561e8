// Naive max and average pooling over x [n, c, h, w].
#pragma once

#include <utility>

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

struct AvgPool2dOptions {
  std::pair<int64_t, int64_t> kernel = {2, 2};  // (h, w), as all pairs here
  std::pair<int64_t, int64_t> stride = {2, 2};
  std::pair<int64_t, int64_t> padding = {0, 0};
  bool ceil_mode = false;         // as for max pooling
  bool count_include_pad = true;  // padding counts in the divisor; what overhangs it never does
  int64_t divisor = 0;            // replaces the count where it is not 0
};

Array avg_pool2d(const Array& x, const AvgPool2dOptions& options);
Array avg_pool2d_backward(const Shape& shape, const AvgPool2dOptions& options, const Array& dy);

// Output (p, q) is the mean of rows floor(p*h/oh) .. ceil((p+1)*h/oh) - 1, columns likewise.
Array adaptive_avg_pool2d(const Array& x, std::pair<int64_t, int64_t> size);
Array adaptive_avg_pool2d_backward(const Shape& shape, const Array& dy);

}  // namespace gradus::ref
