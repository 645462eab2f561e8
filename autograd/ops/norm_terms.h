// The backward of a normalization, split into the terms of its formula (core/ops/normalization.h):
//
//   direct     = rstd·d            what dx would be if mean and rstd were constants
//   mean       = -rstd·m1          what the mean takes away: one value per set
//   projection = -rstd·xhat·m2     what the variance takes away: along xhat
//   dx = direct + mean + projection
//
//   NormStatistics saved;
//   Tensor y = group_norm(x, 4, gamma, beta, 1e-5, &saved);
//   NormTerms terms = group_norm_terms(x, dy, gamma, saved.mean, saved.rstd, 4);
//
// All results are contiguous, of x's shape, in acc_dtype(x.dtype), without history. mean and rstd
// are those that the forward saved; gamma may be undefined (1).
#pragma once

#include "core/tensor.h"

namespace gradus {

// What a normalization saves for its backward besides x and gamma, one value per set. rms_norm has
// no mean.
struct NormStatistics {
  Tensor mean, rstd;  // acc_dtype(x.dtype)
};

struct NormTerms {
  Tensor direct, mean, projection;  // mean is undefined for rms_norm, which subtracts none
};

// x, dy [n, c, ...]; gamma, mean, rstd [c]; of training, where the statistics depend on x.
NormTerms batch_norm_terms(const Tensor& x, const Tensor& dy, const Tensor& gamma,
                           const Tensor& mean, const Tensor& rstd);
// x, dy [n, c, ...]; gamma [c]; mean, rstd [n, groups]. instance_norm: groups = c.
NormTerms group_norm_terms(const Tensor& x, const Tensor& dy, const Tensor& gamma,
                           const Tensor& mean, const Tensor& rstd, int64_t groups);
// x, dy [..., d...] with the normalized axes last; gamma of their shape; mean, rstd: one per row.
NormTerms layer_norm_terms(const Tensor& x, const Tensor& dy, const Tensor& gamma,
                           const Tensor& mean, const Tensor& rstd);
NormTerms rms_norm_terms(const Tensor& x, const Tensor& dy, const Tensor& gamma,
                         const Tensor& rstd);

}  // namespace gradus
