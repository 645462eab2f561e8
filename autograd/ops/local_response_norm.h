// Local response normalization as functions of tensors.
#pragma once

#include "core/tensor.h"

namespace gradus {

// x: [n, c] to [n, c, d, h, w], floating, contiguous or channels-last (other strides are copied
// first, which a Trace shows). Returns a tensor like x. Formula: core/ops/local_response_norm.h.
// Needs size >= 1, which may exceed c, and alpha and k that are not negative and not both 0.
Tensor local_response_norm(const Tensor& x, int64_t size, double alpha = 1e-4, double beta = 0.75,
                           double k = 1.0);

// The denominators k + alpha/size·Σ x² that local_response_norm() divides by, before the power:
// like x, in acc_dtype(x.dtype). The result carries no history, so x must ask for no gradient, or
// the call must stand under NoGradGuard.
Tensor local_response_norm_denom(const Tensor& x, int64_t size, double alpha = 1e-4,
                                 double k = 1.0);

}  // namespace gradus
