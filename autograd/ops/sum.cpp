#include "autograd/ops/sum.h"

#include "autograd/node.h"
#include "autograd/ops/arithmetic.h"
#include "autograd/ops/axis_set.h"
#include "core/launch.h"
#include "core/ops/sum.h"

namespace gradus {
namespace {

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
  const ReducedShapes shapes = reduced_shapes(x.shape(), summed, keepdim);
  const double scale = divide ? 1.0 / static_cast<double>(shapes.count) : 1.0;
  const Tensor kept = Tensor::empty(shapes.kept, {.dtype = x.dtype(), .device = x.device()});
  launch(Sum{.x = x.raw(), .y = kept.raw(), .scale = scale});
  Tensor y = kept.reshape(shapes.result);
  if (auto node = make_node<SumNode>(x)) {
    node->op = op;
    node->scale = scale;
    node->x_shape = x.shape();
    node->kept_shape = shapes.kept;
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
    summed[static_cast<size_t>(axis)] = axis < lead || shape[axis - lead] == 1;
  }
  return scaled_sum("sum_to", x, summed, true, false).reshape(shape);
}

}  // namespace gradus
