// Where a value that is not finite comes from.
#pragma once

#include <string>

#include "nn/module.h"

namespace gradus::nn {

// Whether all elements are finite; copies the tensor to the host.
bool is_finite(const Tensor& tensor);

// "parameter 6.weight" or "buffer 1.running_var": the first that holds NaN or infinity; or empty.
std::string first_non_finite_state(Module& model);

// Runs the model on `x` without history and names the first tensor that holds NaN or infinity: the
// input, a parameter, or the output of a module ("the output of 3 (ReLU)"). Empty when all are
// finite.
std::string first_non_finite(Module& model, const Tensor& x);

}  // namespace gradus::nn
