// Negative log-likelihood as a function of tensors.
#pragma once

#include "core/ops/reduction.h"
#include "core/tensor.h"

namespace gradus {

struct NllLossOptions {
  Tensor weight = {};  // [c], acc_dtype of log_probs: of each class; undefined for 1
  Reduction reduction = Reduction::mean;
  int64_t ignore_index = -100;  // rows with this label do not count
};

// log_probs: [n, c, ...], floating, as log_softmax(x, 1) gives them. labels: [n, ...], u8, i32 or
// i64, each in [0, c) or ignore_index. Returns [n, ...] for Reduction::none, else a scalar, in
// acc_dtype of log_probs. The mean over no rows is NaN. Formula: core/ops/nll_loss.h.
//
// A label outside throws invalid_argument as by cross_entropy(): at once on the CPU, on CUDA by the
// next call that waits for the device.
Tensor nll_loss(const Tensor& log_probs, const Tensor& labels, const NllLossOptions& options = {});

}  // namespace gradus
