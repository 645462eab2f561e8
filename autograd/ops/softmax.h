// Softmax and log-softmax as functions of tensors.
#pragma once

#include "core/tensor.h"

namespace gradus {

// x: floating, rank 1 to 8, contiguous or channels-last (other strides are copied first, which a
// Trace shows). axis: -rank to rank - 1. Return a tensor like x, of which the elements along the
// axis (their exponentials, for log_softmax) add up to 1. An empty x gives an empty result.
// Formulas and what becomes of NaN and infinities: core/ops/softmax.h.
Tensor softmax(const Tensor& x, int axis);
Tensor log_softmax(const Tensor& x, int axis);

}  // namespace gradus
