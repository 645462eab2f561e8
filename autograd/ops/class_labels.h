// What losses of one label per row ask of their arguments, said once for all of them.
#pragma once

#include "core/tensor.h"

namespace gradus {

// Throws naming `op` unless x is [n, c, ...], floating, with at least one class per label, labels
// are [n, ...] of u8, i32 or i64, and weight, where defined, is [c] in acc_dtype of x without a
// gradient, all on one device. `values`: what x holds, for the text.
void check_class_arguments(std::string_view op, std::string_view values, const Tensor& x,
                           const Tensor& labels, const Tensor& weight);

// x itself where it is contiguous or channels-last, else a contiguous copy; without history.
Tensor dense_rows(const Tensor& x);

}  // namespace gradus
