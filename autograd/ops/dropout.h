// Dropout as a function of tensors.
#pragma once

#include "core/generator.h"

namespace gradus {

// Training: each element of x (floating) becomes 0 with probability p in [0, 1], independently, and
// is divided by 1 - p otherwise; the choice is drawn from `generator`, which is on x's device, or
// from the thread's default generator. Evaluation and p = 0 give x itself, p = 1 gives 0·x, and
// nothing is drawn.
// Formula: core/ops/dropout.h.
Tensor dropout(const Tensor& x, double p = 0.5, bool training = true,
               Generator* generator = nullptr);

}  // namespace gradus
