// What layer_norm and rms_norm share around their kernels: checking the normalized shape, and
// reading tensors as the rows that the kernels take.
#pragma once

#include <string_view>

#include "core/tensor.h"

namespace gradus::detail {

// How a dense tensor reads as [rows, m], one row per set. A channels-last image whose sets are
// whole samples keeps its format: its rows are walked as they are stored, and parameters are
// brought into that order. Everything else is walked in row-major order.
struct NormRows {
  int64_t rows = 0;
  int64_t m = 0;
  Shape normalized_shape;
  bool channels_last = false;

  // `dense` has the shape and the format of x; the view has no history.
  Tensor view(const Tensor& dense) const;
  // A parameter of the normalized shape as [m] in the order of a row, without history; undefined
  // stays so.
  Tensor flatten_parameter(const Tensor& parameter) const;
  // A gradient [m] in the order of a row as a contiguous one of the normalized shape; undefined
  // stays so.
  Tensor unflatten_gradient(const Tensor& gradient) const;
};

// Throws naming `op` unless x is floating and ends in the axes `normalized_shape`, one at least.
void check_norm_rows(std::string_view op, const Tensor& x, const Shape& normalized_shape);
// Throws unless a parameter is undefined or has the normalized shape and acc_dtype(x.dtype()).
void check_norm_parameter(std::string_view op, std::string_view what, const Tensor& parameter,
                          const Tensor& x, const Shape& normalized_shape);

// x itself where norm_rows() can read it, else a contiguous copy (which a Trace shows).
Tensor dense_for_rows(const Tensor& x, const Shape& normalized_shape);
NormRows norm_rows(const Tensor& dense, const Shape& normalized_shape);

}  // namespace gradus::detail
