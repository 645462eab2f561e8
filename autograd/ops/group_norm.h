// Group normalization as a function of tensors.
#pragma once

#include "autograd/ops/norm_terms.h"

namespace gradus {

// x: [n, c] to [n, c, d, h, w], floating, contiguous or channels-last (other strides are copied
// first, which a Trace shows); c is a multiple of `groups`. gamma, beta: [c], acc_dtype(x.dtype),
// or undefined for 1 and 0. Returns a tensor like x; `saved`, if given, receives mean and rstd
// [n, groups]. Formulas: core/ops/group_norm.h.
//
// A group of one element (c/groups·s = 1) gives beta, for any number of samples.
Tensor group_norm(const Tensor& x, int64_t groups, const Tensor& gamma = {},
                  const Tensor& beta = {}, double eps = 1e-5, NormStatistics* saved = nullptr);

}  // namespace gradus
