#include "nn/max_pool2d.h"

#include "autograd/ops/max_pool2d.h"

namespace gradus::nn {

Tensor MaxPool2d::forward(const Tensor& x) { return max_pool2d(x, window, ceil_mode); }

}  // namespace gradus::nn
