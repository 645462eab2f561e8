// Reductions over a set of axes, as functions of tensors; sum and mean are in autograd/ops/sum.h.
//
//   Tensor y = logsumexp(x, {1});         // [n,c,h,w] -> [n,h,w]
//   Tensor s = gradus::std(x, {0, 2, 3}, 0, true);  // -> [1,c,1,1], divided by m
//
// x: floating, rank 0 to 8, any strides. `axes` may count from the back; none given means all. The
// axes are removed, or kept with extent 1 under keepdim. f16 and bf16 are computed in f32 and
// rounded once. Errors: invalid_argument for an axis out of range or named twice, and for max and
// min of empty sets. Other empty sets give prod 1, norm2 0, logsumexp -inf, var and std NaN.
// Formulas, forward and backward: core/ops/reductions.h; edge rules: docs/numerics.md.
#pragma once

#include <vector>

#include "core/tensor.h"

namespace gradus {

// NaN if any element is; elements that tie share the gradient equally.
Tensor max(const Tensor& x, const std::vector<int>& axes = {}, bool keepdim = false);
Tensor min(const Tensor& x, const std::vector<int>& axes = {}, bool keepdim = false);
Tensor prod(const Tensor& x, const std::vector<int>& axes = {}, bool keepdim = false);
// √(Σ x²); the gradient at 0 is 0.
Tensor norm2(const Tensor& x, const std::vector<int>& axes = {}, bool keepdim = false);
Tensor logsumexp(const Tensor& x, const std::vector<int>& axes = {}, bool keepdim = false);
// Σ (x - mean)² / max(0, m - correction) over the m elements of a set; correction >= 0.
Tensor var(const Tensor& x, const std::vector<int>& axes = {}, double correction = 1,
           bool keepdim = false);
// √var; the gradient at 0 is 0.
Tensor std(const Tensor& x, const std::vector<int>& axes = {}, double correction = 1,
           bool keepdim = false);

}  // namespace gradus
