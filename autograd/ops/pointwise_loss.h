// Losses of values and targets of one shape, as functions of tensors. Formulas:
// core/ops/pointwise_loss.h.
//
// x and t: one shape, one floating dtype, any strides; both may ask for gradients. Returns the
// shape of x for Reduction::none, else a scalar, in acc_dtype of x. The mean over no values is NaN.
// Throws invalid_argument for shapes or dtypes that differ: nothing is broadcast but the weights.
#pragma once

#include "core/ops/reduction.h"
#include "core/tensor.h"

namespace gradus {

// (x - t)²: https://pytorch.org/docs/stable/generated/torch.nn.functional.mse_loss.html
Tensor mse_loss(const Tensor& x, const Tensor& t, Reduction reduction = Reduction::mean);

// |x - t|: https://pytorch.org/docs/stable/generated/torch.nn.functional.l1_loss.html
Tensor l1_loss(const Tensor& x, const Tensor& t, Reduction reduction = Reduction::mean);

// (x - t)²/(2·beta) where |x - t| < beta, else |x - t| - beta/2; beta is 0 or more.
// https://pytorch.org/docs/stable/generated/torch.nn.functional.smooth_l1_loss.html
Tensor smooth_l1_loss(const Tensor& x, const Tensor& t, Reduction reduction = Reduction::mean,
                      double beta = 1.0);

struct BceWithLogitsOptions {
  Tensor weight = {};      // of each value, acc_dtype of x, broadcasts to x; undefined for 1
  Tensor pos_weight = {};  // of the targets' share, the same
  Reduction reduction = Reduction::mean;
};

// Binary cross-entropy of logits x and targets t in [0, 1] (not checked):
//   weight·-(pos_weight·t·log s(x) + (1 - t)·log(1 - s(x))), s the sigmoid
// pytorch.org/docs/stable/generated/torch.nn.functional.binary_cross_entropy_with_logits.html
Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& t,
                                        const BceWithLogitsOptions& options = {});

}  // namespace gradus
