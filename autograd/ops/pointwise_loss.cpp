#include "autograd/ops/pointwise_loss.h"

#include <cmath>

#include "autograd/node.h"
#include "core/launch.h"
#include "core/ops/pointwise_loss.h"

namespace gradus {
namespace {

struct LossOptions {
  PointwiseLoss kind = PointwiseLoss::mse;
  Reduction reduction = Reduction::mean;
  double beta = 1.0;
};

std::string_view name_of(PointwiseLoss kind) {
  std::string_view name;
  visit_loss(kind, [&](auto f) { name = decltype(f)::type::name; });
  return name;
}

struct PointwiseLossNode final : Node {
  LossOptions options;
  Saved x, t, weight, pos_weight;

  std::string_view name() const override { return name_of(options.kind); }
  void backward(const Tensor& dy, Gradients& grads) override;
};

void check_weight(std::string_view op, std::string_view what, const Tensor& weight,
                  const Tensor& x) {
  if (!weight.defined()) return;
  const DType dtype = acc_dtype(x.dtype());
  check(weight.dtype() == dtype, op, "expected ", what, " in ", dtype, " for ", x, ", got ",
        weight);
  check(broadcast_shapes(weight.shape(), x.shape(), op) == x.shape(), op, what,
        " must broadcast to ", x, ", got ", weight);
  check(weight.device() == x.device(), op, "all tensors must be on one device, got ", x, " and ",
        weight);
  check(!weight.requires_grad(), op, what, " has no gradient, got one that requires it");
}

Tensor pointwise_loss(const LossOptions& options, const Tensor& x, const Tensor& t,
                      const Tensor& weight = {}, const Tensor& pos_weight = {}) {
  const std::string_view op = name_of(options.kind);
  check(is_floating(x.dtype()), op, "expected a floating dtype, got ", x);
  check(t.shape() == x.shape() && t.dtype() == x.dtype(), op,
        "expected targets of the shape and dtype of ", x, ", got ", t);
  check(t.device() == x.device(), op, "all tensors must be on one device, got ", x, " and ", t);
  check_weight(op, "weight", weight, x);
  check_weight(op, "pos_weight", pos_weight, x);
  TensorOptions acc = x.options();
  acc.dtype = acc_dtype(x.dtype());
  const bool is_none = options.reduction == Reduction::none;
  if (!is_none) acc.format = MemoryFormat::contiguous;
  Tensor loss = Tensor::empty(is_none ? x.shape() : Shape{}, acc);
  launch(PointwiseLossForward{.kind = options.kind,
                              .x = x.raw(),
                              .t = t.raw(),
                              .weight = weight.raw(),
                              .pos_weight = pos_weight.raw(),
                              .loss = loss.raw(),
                              .reduction = options.reduction,
                              .beta = options.beta});
  if (auto node = make_node<PointwiseLossNode>(x, t)) {
    node->options = options;
    node->x = Saved(x);
    node->t = Saved(t);
    node->weight = Saved(weight);
    node->pos_weight = Saved(pos_weight);
    attach(loss, std::move(node));
  }
  return loss;
}

void PointwiseLossNode::backward(const Tensor& dy, Gradients& grads) {
  const Tensor x = this->x.get(name(), "x"), t = this->t.get(name(), "t");
  const Tensor dx = grads.allocate(0, x), dt = grads.allocate(1, t);
  launch(PointwiseLossBackward{.kind = options.kind,
                               .x = x.raw(),
                               .t = t.raw(),
                               .weight = weight.get(name(), "weight").raw(),
                               .pos_weight = pos_weight.get(name(), "pos_weight").raw(),
                               .dy = dy.raw(),
                               .dx = dx.raw(),
                               .dt = dt.raw(),
                               .reduction = options.reduction,
                               .beta = options.beta});
  if (dx.defined()) grads.set(0, dx);
  if (dt.defined()) grads.set(1, dt);
}

}  // namespace

Tensor mse_loss(const Tensor& x, const Tensor& t, Reduction reduction) {
  return pointwise_loss({.kind = PointwiseLoss::mse, .reduction = reduction}, x, t);
}

Tensor l1_loss(const Tensor& x, const Tensor& t, Reduction reduction) {
  return pointwise_loss({.kind = PointwiseLoss::l1, .reduction = reduction}, x, t);
}

Tensor smooth_l1_loss(const Tensor& x, const Tensor& t, Reduction reduction, double beta) {
  check(std::isfinite(beta) && beta >= 0, "smooth_l1_loss", "beta must be 0 or more, got ", beta);
  return pointwise_loss({.kind = PointwiseLoss::smooth_l1, .reduction = reduction, .beta = beta}, x,
                        t);
}

Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& t,
                                        const BceWithLogitsOptions& options) {
  return pointwise_loss({.kind = PointwiseLoss::bce_with_logits, .reduction = options.reduction}, x,
                        t, options.weight, options.pos_weight);
}

}  // namespace gradus
