// Batch normalization as a function of tensors.
#pragma once

#include "autograd/ops/norm_terms.h"

namespace gradus {

struct BatchNormOptions {
  bool training = true;
  double momentum = 0.1;
  bool cumulative = false;  // running statistics average over all batches; needs `batches`
  double eps = 1e-5;
};

// The statistics that training updates in place and evaluation reads.
struct BatchNormState {
  Tensor running_mean = {};  // [c], acc_dtype(x.dtype), any stride but 0; the two share no element
  Tensor running_var = {};   // the same
  Tensor batches = {};       // one i64, of any shape; may be undefined
};

// x: [n, c] to [n, c, d, h, w], floating, contiguous or channels-last (other strides are copied
// first, which a Trace shows). gamma, beta: [c], acc_dtype(x.dtype), or undefined for 1 and 0.
// Returns a tensor like x; `saved`, if given, receives the mean and rstd [c] that it was normalized
// with. Formulas: core/ops/batch_norm.h.
//
// Training needs m > 1 values per channel, or an empty x: then nothing is updated and the
// parameters' gradients are 0. Evaluation without running statistics uses those of the batch, as
// training does.
Tensor batch_norm(const Tensor& x, const Tensor& gamma = {}, const Tensor& beta = {},
                  const BatchNormState& state = {}, const BatchNormOptions& options = {},
                  NormStatistics* saved = nullptr);

}  // namespace gradus
