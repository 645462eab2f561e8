// Two-dimensional max pooling, as a function of tensors.
#pragma once

#include "core/ops/window.h"
#include "core/tensor.h"

namespace gradus {

// y[n,c,p,q] = the largest x of the window at (p, q); padding never wins, the first of equals does,
// and a NaN wins over every number. Formula: core/ops/max_pool2d.h.
//   x       [n, c, h, w], floating; y keeps its format (channels-last, else contiguous); or
//           [c, h, w], for y [c, p, q]
//   window  kernel, stride (PyTorch's default is the kernel), padding of at most half the kernel,
//           dilation
// With ceil_mode a last window may overhang, if it starts inside x or its left padding.
// Throws invalid_argument naming the numbers before anything is computed, also for a window that
// holds nothing but padding; unsupported on CUDA for a padding of 2^28 or more.
Tensor max_pool2d(const Tensor& x, const Window& window, bool ceil_mode = false);

}  // namespace gradus
