// RMS normalization as a function of tensors.
#pragma once

#include <optional>

#include "autograd/ops/norm_terms.h"

namespace gradus {

// x: rank 1 to 8, floating, ending in the axes `normalized_shape`, over which each set runs. gamma:
// of that shape, acc_dtype(x.dtype()), or undefined for 1. eps: empty for the distance from 1 to
// the next number of x's dtype (2^-23, 2^-52, 2^-10, 2^-7 for f32, f64, f16, bf16). Returns a
// tensor like x; `saved`, if given, receives rstd [rows], one per set.
//
// Contiguous tensors, and channels-last ones whose sets are whole samples, keep their format;
// others are made contiguous first, which a Trace shows. A set without elements gives nothing and
// has no gradient. Formulas: core/ops/rms_norm.h.
// As https://pytorch.org/docs/stable/generated/torch.nn.functional.rms_norm.html
Tensor rms_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& gamma = {},
                std::optional<double> eps = {}, NormStatistics* saved = nullptr);

}  // namespace gradus
