// Matrix products as functions of tensors.
#pragma once

#include "core/tensor.h"

namespace gradus {

// y[..., out] = x[..., in]·w[out, in]ᵀ + bias[out]; bias may be undefined. x and w share a floating
// dtype, which is y's; bias has acc_dtype of it. Formula: core/ops/matmul.h.
//
// Under AutocastGuard f32 x and w are converted to the half dtype first, which is then y's; the
// gradients of f32 operands are computed in f32 all the same. MatmulPrecision::tf32 applies to f32
// operands on CUDA, in all three products.
Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias = {});

// y[..., m, n] = a[..., m, k]·b[..., k, n]: matrices of rank 2 or more, whose leading axes
// broadcast against each other; at most 2^31 - 1 matrices of y on CUDA. Dtypes, autocast and
// precision as for linear().
Tensor matmul(const Tensor& a, const Tensor& b);

}  // namespace gradus
