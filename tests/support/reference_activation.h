// Naive activations by name.
#pragma once

#include <string_view>

#include "tests/support/reference_array.h"

namespace gradus::ref {

struct ActivationParameters {
  double a = 0, b = 0;
};

// relu, relu6, leaky_relu (a = slope), elu (a = alpha), gelu, gelu_tanh, silu, mish, sigmoid, tanh,
// softplus (a = beta, b = threshold), hardswish, hardsigmoid; another name is an
// std::invalid_argument. Formulas, and gradients at the corners, are those of PyTorch (2.7 and
// later for hardswish at -3 and 3); at -inf and inf all are the limits, NaN gives NaN.
Array activation(std::string_view name, const Array& x, ActivationParameters parameters = {});
Array activation_backward(std::string_view name, const Array& x, const Array& dy,
                          ActivationParameters parameters = {});

}  // namespace gradus::ref
