#include "autograd/ops/axis_set.h"

namespace gradus {

AxisSet axis_set(const Tensor& x, const std::vector<int>& axes, std::string_view op) {
  AxisSet result{};
  for (int axis = 0; axis < x.rank(); ++axis) result[static_cast<size_t>(axis)] = axes.empty();
  for (const int axis : axes) {
    bool& entry = result[static_cast<size_t>(normalize_axis(axis, x.rank(), op))];
    check(!entry, op, "axis ", axis, " is named twice");
    entry = true;
  }
  return result;
}

ReducedShapes reduced_shapes(const Shape& shape, const AxisSet& axes, bool keepdim) {
  ReducedShapes result;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const bool is_reduced = axes[static_cast<size_t>(axis)];
    if (is_reduced) result.count *= shape[axis];
    result.kept.append(is_reduced ? 1 : shape[axis]);
    if (!is_reduced || keepdim) result.result.append(result.kept[axis]);
  }
  return result;
}

}  // namespace gradus
