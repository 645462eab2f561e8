#include "autograd/ops/row_norm.h"

namespace gradus::detail {
namespace {

bool walks_channels_last(const Tensor& x, const Shape& normalized_shape) {
  return x.rank() == 4 && normalized_shape.rank() >= 3 && !x.is_contiguous() &&
         x.is_contiguous(MemoryFormat::channels_last);
}

}  // namespace

Tensor NormRows::view(const Tensor& dense) const {
  return dense.as_strided({rows, m}, {m, 1}, dense.offset());
}

Tensor NormRows::flatten_parameter(const Tensor& parameter) const {
  if (!parameter.defined()) return {};
  Tensor values = parameter.detach();
  if (channels_last) {
    const bool has_samples = values.rank() == 4;
    values = values.permute(has_samples ? std::vector{0, 2, 3, 1} : std::vector{1, 2, 0});
  }
  return values.contiguous().reshape({m});
}

Tensor NormRows::unflatten_gradient(const Tensor& gradient) const {
  if (!gradient.defined()) return {};
  if (!channels_last) return gradient.reshape(normalized_shape);
  const Shape& s = normalized_shape;
  if (s.rank() == 4) {
    return gradient.reshape({s[0], s[2], s[3], s[1]}).permute({0, 3, 1, 2}).contiguous();
  }
  return gradient.reshape({s[1], s[2], s[0]}).permute({2, 0, 1}).contiguous();
}

void check_norm_rows(std::string_view op, const Tensor& x, const Shape& normalized_shape) {
  check(is_floating(x.dtype()), op, "expected a floating dtype, got ", x);
  const int lead = x.rank() - normalized_shape.rank();
  bool fits = normalized_shape.rank() > 0 && lead >= 0;
  for (int axis = 0; fits && axis < normalized_shape.rank(); ++axis) {
    fits = x.size(lead + axis) == normalized_shape[axis];
  }
  check(fits, op, "expected x to end in the normalized axes ", normalized_shape,
        " (one at least), got ", x);
}

void check_norm_parameter(std::string_view op, std::string_view what, const Tensor& parameter,
                          const Tensor& x, const Shape& normalized_shape) {
  if (!parameter.defined()) return;
  check(parameter.shape() == normalized_shape, op, what, " must have the normalized shape ",
        normalized_shape, " of ", x, ", got ", parameter);
  check(parameter.dtype() == acc_dtype(x.dtype()), op, what, " must be ", acc_dtype(x.dtype()),
        " for ", x, ", got ", parameter);
}

Tensor dense_for_rows(const Tensor& x, const Shape& normalized_shape) {
  return walks_channels_last(x, normalized_shape) ? x : x.contiguous();
}

NormRows norm_rows(const Tensor& dense, const Shape& normalized_shape) {
  NormRows result{.rows = 1,
                  .m = normalized_shape.numel(),
                  .normalized_shape = normalized_shape,
                  .channels_last = walks_channels_last(dense, normalized_shape)};
  const int lead = dense.rank() - normalized_shape.rank();
  for (int axis = 0; axis < lead; ++axis) result.rows *= dense.size(axis);
  return result;
}

}  // namespace gradus::detail
