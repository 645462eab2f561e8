#include "autograd/ops/sum.h"

#include <array>

#include "autograd/node.h"
#include "autograd/ops/arithmetic.h"
#include "core/launch.h"
#include "core/ops/sum.h"

namespace gradus {
namespace {

using AxisSet = std::array<bool, kMaxRank>;

AxisSet axis_set(const Tensor& x, const std::vector<int>& axes, std::string_view op) {
  AxisSet summed{};
  for (int axis = 0; axis < x.rank(); ++axis) summed[static_cast<size_t>(axis)] = axes.empty();
  for (const int axis : axes) {
    bool& entry = summed[static_cast<size_t>(normalize_axis(axis, x.rank(), op))];
    check(!entry, op, "axis ", axis, " is named twice");
    entry = true;
  }
  return summed;
}

struct SumNode final : Node {
  std::string_view op;
  double scale;
  Shape x_shape, kept_shape;  // of x; the same with extents of 1 along the summed axes

  std::string_view name() const override { return op; }
  void backward(const Tensor& dy, Gradients& grads) override {
    const Tensor scaled = scale == 1.0 ? dy : affine(dy, scale);
    grads.set(0, scaled.reshape(kept_shape).expand(x_shape));
  }
};

Tensor scaled_sum(std::string_view op, const Tensor& x, const AxisSet& summed, bool keepdim,
                  bool divide) {
  check(is_floating(x.dtype()), op, "expected a floating dtype, got ", x);
  Shape kept_shape, shape;
  int64_t count = 1;
  for (int axis = 0; axis < x.rank(); ++axis) {
    const bool is_summed = summed[static_cast<size_t>(axis)];
    if (is_summed) count *= x.size(axis);
    kept_shape.append(is_summed ? 1 : x.size(axis));
    if (!is_summed || keepdim) shape.append(kept_shape[axis]);
  }
  const double scale = divide ? 1.0 / static_cast<double>(count) : 1.0;
  const Tensor kept = Tensor::empty(kept_shape, {.dtype = x.dtype(), .device = x.device()});
  launch(Sum{.x = x.raw(), .y = kept.raw(), .scale = scale});
  Tensor y = kept.reshape(shape);
  if (auto node = make_node<SumNode>(x)) {
    node->op = op;
    node->scale = scale;
    node->x_shape = x.shape();
    node->kept_shape = kept_shape;
    attach(y, std::move(node));
  }
  return y;
}

}  // namespace

Tensor sum(const Tensor& x, const std::vector<int>& axes, bool keepdim) {
  return scaled_sum("sum", x, axis_set(x, axes, "sum"), keepdim, false);
}

Tensor mean(const Tensor& x, const std::vector<int>& axes, bool keepdim) {
  return scaled_sum("mean", x, axis_set(x, axes, "mean"), keepdim, true);
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  check(broadcast_shapes(x.shape(), shape, "sum_to") == x.shape(), "sum_to", shape,
        " does not broadcast to ", x);
  AxisSet summed{};
  const int lead = x.rank() - shape.rank();
  for (int axis = 0; axis < x.rank(); ++axis) {
    summed[static_cast<size_t>(axis)] =
        axis < lead || (shape[axis - lead] == 1 && x.size(axis) != 1);
  }
  return scaled_sum("sum_to", x, summed, true, false).reshape(shape);
}

}  // namespace gradus
