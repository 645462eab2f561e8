#include "autograd/ops/softmax.h"

#include "autograd/tape.h"
#include "core/launch.h"
#include "core/ops/softmax.h"

namespace gradus {
namespace {

struct SoftmaxNode final : Node {
  Saved y;
  int axis;
  bool log;

  std::string_view name() const override { return log ? "log_softmax" : "softmax"; }
  void backward(const Tensor& dy, Gradients& grads) override;
};

Tensor apply(std::string_view op, const Tensor& given, int given_axis, bool log) {
  check(is_floating(given.dtype()), op, "expected a floating dtype, got ", given);
  check(given.rank() >= 1, op, "expected at least one axis, got ", given);
  const int axis = normalize_axis(given_axis, given.rank(), op);
  const Tensor x = dense_either(given);
  Tensor y = empty_like(x);
  launch(SoftmaxForward{.x = x.raw(), .y = y.raw(), .axis = axis, .log = log});
  if (auto node = make_node<SoftmaxNode>(x)) {
    node->y = Saved(y);
    node->axis = axis;
    node->log = log;
    attach(y, std::move(node));
  }
  return y;
}

}  // namespace

Tensor softmax(const Tensor& x, int axis) { return apply("softmax", x, axis, false); }
Tensor log_softmax(const Tensor& x, int axis) { return apply("log_softmax", x, axis, true); }

void SoftmaxNode::backward(const Tensor& upstream, Gradients& grads) {
  const Tensor y = this->y.get(name(), "y");
  const Tensor dy = dense(upstream, y.options().format);
  const Tensor dx = empty_like(y);
  launch(SoftmaxBackward{.y = y.raw(), .dy = dy.raw(), .dx = dx.raw(), .axis = axis, .log = log});
  grads.set(0, dx);
}

}  // namespace gradus
