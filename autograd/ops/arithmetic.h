// The four operations of arithmetic between tensors, and between a tensor and a number.
//
//   Tensor y = 2.0 * a - b / c;
//
// Tensors broadcast as in PyTorch (trailing axes aligned, extents of 1 repeated) and must share
// dtype and device, else invalid_argument. Floating dtypes; f16 and bf16 are computed in f32 and
// rounded once. Formulas: core/ops/arithmetic.h.
#pragma once

#include "core/tensor.h"

namespace gradus {

Tensor add(const Tensor& a, const Tensor& b, double alpha = 1.0);  // a + alpha b
Tensor sub(const Tensor& a, const Tensor& b, double alpha = 1.0);  // a - alpha b
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
// scale x + shift, in the dtype of x. Both numbers are rounded to acc_dtype first. A shift of -0
// leaves the sign of a zero alone; +0 would make -0 of the product +0.
Tensor affine(const Tensor& x, double scale, double shift = -0.0);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator-(const Tensor& x) { return affine(x, -1.0); }
inline Tensor operator+(const Tensor& x, double value) { return affine(x, 1.0, value); }
inline Tensor operator+(double value, const Tensor& x) { return affine(x, 1.0, value); }
inline Tensor operator-(const Tensor& x, double value) { return affine(x, 1.0, -value); }
inline Tensor operator-(double value, const Tensor& x) { return affine(x, -1.0, value); }
inline Tensor operator*(const Tensor& x, double value) { return affine(x, value); }
inline Tensor operator*(double value, const Tensor& x) { return affine(x, value); }
Tensor operator/(const Tensor& x, double value);
Tensor operator/(double value, const Tensor& x);

}  // namespace gradus
