// sum and mean, as functions of tensors.
#pragma once

#include <vector>

#include "core/tensor.h"

namespace gradus {

// Σ x over `axes` (all when empty); the axes are removed, or kept with extent 1 under keepdim.
// x: floating. f16 and bf16 are summed in f32 and rounded once. Formula: core/ops/sum.h.
Tensor sum(const Tensor& x, const std::vector<int>& axes = {}, bool keepdim = false);
// The same divided by the number of elements summed; NaN over an empty set.
Tensor mean(const Tensor& x, const std::vector<int>& axes = {}, bool keepdim = false);

// Σ over the axes along which `shape` was repeated to give x: the gradient of a broadcast operand.
Tensor sum_to(const Tensor& x, const Shape& shape);

}  // namespace gradus
