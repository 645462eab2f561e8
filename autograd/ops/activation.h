// Activations as functions of tensors: y = f(x), in the shape, dtype and format of x.
//
// x: floating, any shape. f16 and bf16 are computed in f32 and rounded once. Formulas:
// core/ops/activation.h.
#pragma once

#include <string>
#include <vector>

#include "core/ops/activation.h"
#include "core/tensor.h"

namespace gradus {

// max(x, 0); NaN passes through, the gradient at 0 is 0.
Tensor relu(const Tensor& x);

// The same by name, as in `--activation relu`; parse_activation throws invalid_argument naming the
// choices.
Tensor activate(const Tensor& x, Activation activation);
Activation parse_activation(std::string_view name);
std::string_view to_string(Activation activation);
std::vector<std::string> activation_names();

}  // namespace gradus
