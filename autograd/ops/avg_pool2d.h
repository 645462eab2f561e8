// Two-dimensional average pooling, as functions of tensors.
#pragma once

#include <optional>

#include "core/ops/window.h"
#include "core/tensor.h"

namespace gradus {

struct AvgPool2dOptions {
  Pair kernel_size = 1;
  std::optional<Pair> stride = std::nullopt;  // not given: the windows touch
  Pair padding = 0;                           // zeros, at most half the kernel
  bool ceil_mode = false;  // a last window may overhang, if it starts inside x or its left padding
  bool count_include_pad = true;  // padding counts in the mean; what overhangs it never does
  std::optional<int64_t> divisor_override = std::nullopt;  // instead of the count; not 0
};

// y[n,c,p,q] = the mean of x over window (p, q), summed in acc_t. Formula: core/ops/avg_pool2d.h.
//   x  [n, c, h, w], floating; y keeps its format (channels-last, else contiguous); or [c, h, w],
//      for y [c, p, q]
// Throws invalid_argument naming the numbers before anything is computed.
Tensor avg_pool2d(const Tensor& x, const AvgPool2dOptions& options);

// The same with output_size = (p, q) windows that cover x evenly; each extent must be positive.
Tensor adaptive_avg_pool2d(const Tensor& x, Pair output_size);

}  // namespace gradus
