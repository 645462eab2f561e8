// Activations as functions of tensors: y = f(x), in the shape, dtype and format of x.
//
// x: floating, any shape. f32 is within 2 units of the last place, GELU within 3.5; f16 and bf16
// are computed in f32, on CUDA as docs/numerics.md bounds it, and rounded once. Formulas:
// core/ops/activation_functions.h. Names and arguments:
// https://pytorch.org/docs/stable/nn.functional.html#non-linear-activation-functions
//
// relu, relu6, leaky_relu and hardsigmoid keep one bit per element for the backward pass, the
// others keep x.
#pragma once

#include <string>
#include <vector>

#include "core/ops/activation.h"
#include "core/tensor.h"

namespace gradus {

// NaN passes through all of them; the gradient of relu at 0 is 0.
Tensor relu(const Tensor& x);
Tensor relu6(const Tensor& x);
Tensor leaky_relu(const Tensor& x, double negative_slope = 0.01);
Tensor elu(const Tensor& x, double alpha = 1);
// approximate: "none" or "tanh".
Tensor gelu(const Tensor& x, std::string_view approximate = "none");
Tensor silu(const Tensor& x);
Tensor mish(const Tensor& x);
Tensor sigmoid(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor softplus(const Tensor& x, double beta = 1, double threshold = 20);  // beta: 2^-126 to 2^126
Tensor hardswish(const Tensor& x);
Tensor hardsigmoid(const Tensor& x);

// The same by name, as in `--activation relu`, with parameters at their defaults; parse_activation
// throws invalid_argument naming the choices.
Tensor activate(const Tensor& x, const Activation& activation);
Activation parse_activation(std::string_view name);
std::string_view to_string(const Activation& activation);
std::vector<std::string> activation_names();

// gelu's function, and softplus's after a check of its parameters.
Activation make_gelu(std::string_view approximate);
Activation make_softplus(double beta, double threshold);

}  // namespace gradus
