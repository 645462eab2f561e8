// Initial values of parameters, PyTorch's defaults. They are always drawn on the CPU, in the order
// in which layers are constructed, from one Philox sequence per thread that manual_seed() starts
// anew: a seed gives the same network on every device.
// https://pytorch.org/docs/stable/nn.init.html
#pragma once

#include "core/generator.h"

namespace gradus::nn {

using gradus::manual_seed;

namespace init {

// A new f32 tensor on the CPU that asks for a gradient, uniform in [low, high).
Tensor uniform(const Shape& shape, double low, double high);

// Weights [out, in, ...] of a linear layer or a convolution, uniform in ±1/sqrt(fan_in) with
// fan_in = the product of all extents but the first. This is kaiming_uniform_ with a = sqrt(5):
// gain sqrt(2 / (1 + a²)), bound gain·sqrt(3 / fan_in).
Tensor kaiming_uniform(const Shape& shape);

// The bias of a layer whose weights have `weight_shape`: [out], uniform in ±1/sqrt(fan_in).
Tensor bias_uniform(const Shape& weight_shape);

// A parameter of one value, as norms start with.
Tensor constant(const Shape& shape, double value);

}  // namespace init
}  // namespace gradus::nn
