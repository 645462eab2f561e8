#include "nn/max_pool2d.h"

#include "autograd/ops/max_pool2d.h"

namespace gradus::nn {

Tensor MaxPool2d::forward(const Tensor& x) { return max_pool2d(x, window, ceil_mode); }

SumLengths MaxPool2d::sum_lengths(const Shape&, const Shape&) {
  return {.dx = window.kernel[0] * window.kernel[1]};  // windows that overlap
}

}  // namespace gradus::nn
