// What ops with one number per channel ask of it.
#pragma once

#include <string_view>

#include "core/tensor.h"

namespace gradus {

// Throws naming `op` unless `tensor` is undefined or has an entry of acc_dtype(x.dtype()) for each
// channel of x [n, c, ...].
void check_per_channel(std::string_view op, std::string_view what, const Tensor& tensor,
                       const Tensor& x);

// Throws naming `op` unless both are undefined, or both have an entry per channel as above, stored
// for itself and in no place of the other's, and neither asks for a gradient, which normalization
// does not give.
void check_running_statistics(std::string_view op, const Tensor& running_mean,
                              const Tensor& running_var, const Tensor& x);

// Kernels read parameters as dense arrays: one with strides is copied, without history.
Tensor dense_parameter(const Tensor& tensor);

}  // namespace gradus
