// Layer normalization as a function of tensors.
#pragma once

#include "autograd/ops/norm_terms.h"

namespace gradus {

// x: rank 1 to 8, floating, ending in the axes `normalized_shape`, over which each set runs. gamma,
// beta: of that shape, acc_dtype(x.dtype()), or undefined for 1 and 0. Returns a tensor like x;
// `saved`, if given, receives mean and rstd [rows], one per set.
//
// Contiguous tensors, and channels-last ones whose sets are whole samples, keep their format;
// others are made contiguous first, which a Trace shows. A set without elements gives nothing and
// has no gradient. Formulas: core/ops/layer_norm.h.
// As https://pytorch.org/docs/stable/generated/torch.nn.functional.layer_norm.html
Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& gamma = {},
                  const Tensor& beta = {}, double eps = 1e-5, NormStatistics* saved = nullptr);

}  // namespace gradus
