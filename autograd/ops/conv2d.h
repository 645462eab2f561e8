// Two-dimensional convolution, as a function of tensors.
#pragma once

#include "core/ops/window.h"
#include "core/tensor.h"

namespace gradus {

struct Conv2dOptions {
  Pair stride = 1;
  Pair padding = 0;    // zeros on both sides of h and of w; may exceed the kernel
  Pair dilation = 1;   // distance between neighbouring kernel elements
  int64_t groups = 1;  // groups = c is a depthwise convolution
};

// y[n,k,p,q] = bias[k] + Σ x · w over the window at (p, q). Formula: core/ops/conv2d.h.
//   x     [n, c, h, w], floating; y keeps its format (channels-last, else contiguous)
//   w     [k, c/groups, r, s], dtype of x
//   bias  [k], f32 for f16 and bf16, else dtype of x; may be undefined
// Under AutocastGuard f32 x and w are computed in half, while the gradient of an f32 w is f32.
// Throws invalid_argument naming the shapes before anything is computed; unsupported on CUDA where
// padded extents, elements of a filter or channels are 2^30 or more.
Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias = {},
              const Conv2dOptions& options = {});

}  // namespace gradus
