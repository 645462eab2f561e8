// Instance normalization as a function of tensors: each channel of each sample by itself.
#pragma once

#include "autograd/ops/norm_terms.h"

namespace gradus {

struct InstanceNormOptions {
  bool training = true;
  double momentum = 0.1;
  double eps = 1e-5;
};

// The statistics that training updates in place and evaluation reads; both or none.
struct InstanceNormState {
  Tensor running_mean = {};  // [c], acc_dtype(x.dtype), any stride but 0; the two share no element
  Tensor running_var = {};   // the same
};

// x: [n, c] to [n, c, d, h, w], floating, contiguous or channels-last (other strides are copied
// first, which a Trace shows). gamma, beta: [c], acc_dtype(x.dtype), or undefined for 1 and 0.
// Returns a tensor like x; `saved`, if given, receives mean and rstd: [n, c], or [c] in evaluation
// with running statistics.
// Formulas: core/ops/group_norm.h and core/ops/instance_norm.h.
//
// Evaluation with running statistics is batch_norm's. A channel of one element gives beta, for any
// number of samples; updating running statistics needs two or more. An empty x changes nothing.
Tensor instance_norm(const Tensor& x, const Tensor& gamma = {}, const Tensor& beta = {},
                     const InstanceNormState& state = {}, const InstanceNormOptions& options = {},
                     NormStatistics* saved = nullptr);

}  // namespace gradus
