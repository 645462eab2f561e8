// Cross-entropy as a function of tensors.
#pragma once

#include "core/ops/reduction.h"
#include "core/tensor.h"

namespace gradus {

struct CrossEntropyOptions {
  Tensor weight = {};  // [c], acc_dtype of the logits: of each class; undefined for 1
  Reduction reduction = Reduction::mean;
  double label_smoothing = 0.0;  // 0 to 1
  int64_t ignore_index = -100;   // rows with this label do not count
};

// logits: [n, c, ...], floating. labels: [n, ...], u8, i32 or i64, each in [0, c) or ignore_index.
// Returns [n, ...] for Reduction::none, else a scalar, in acc_dtype of the logits. The mean over no
// rows is NaN. Formula: core/ops/cross_entropy.h.
//
// A label outside throws invalid_argument: at once on the CPU; on CUDA the loss is NaN, and the
// next call that waits for the device throws (core/fault.h), so that a training step never waits.
// check_labels() finds such labels beforehand.
Tensor cross_entropy(const Tensor& logits, const Tensor& labels,
                     const CrossEntropyOptions& options = {});

// Throws as cross_entropy() unless each of the labels is in [0, classes) or ignore_index. Waits for
// the device: meant for a data set when it is loaded.
void check_labels(const Tensor& labels, int64_t classes, int64_t ignore_index = -100);

}  // namespace gradus
