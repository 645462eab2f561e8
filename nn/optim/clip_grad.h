// Clipping gradients between backward and the optimizer's step. Both enqueue only, so that they may
// be captured; formulas in core/ops/clip_grad.h.
//
//   loss.backward();
//   nn::clip_grad_norm_(model.parameters(), 1.0);
//   optimizer.step();
#pragma once

#include <vector>

#include "core/tensor.h"

namespace gradus::nn {

// Scales all gradients together so that their common norm is at most max_norm (inf: measures only),
// and returns the norm before that as an f64 scalar on their device. norm_type: 1, 2 or infinity.
// Parameters without a gradient are passed over, one that is listed twice counts once; where none
// has a gradient the result is 0.
// https://pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
Tensor clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm,
                       double norm_type = 2.0);

// Limits each value of each gradient to [-clip_value, clip_value]; NaN stays NaN.
// https://pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_value_.html
void clip_grad_value_(const std::vector<Tensor>& parameters, double clip_value);

}  // namespace gradus::nn
