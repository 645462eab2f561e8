#include "autograd/ops/nll_loss.h"

#include "autograd/ops/class_labels.h"
#include "autograd/tape.h"
#include "core/launch.h"
#include "core/ops/nll_loss.h"

namespace gradus {
namespace {

struct NllLossNode final : Node {
  Saved labels, weight, divisor;
  Shape x_shape;
  TensorOptions x_options;
  Reduction reduction;
  int64_t ignore_index;

  std::string_view name() const override { return "nll_loss"; }
  void backward(const Tensor& dy, Gradients& grads) override;
};

}  // namespace

Tensor nll_loss(const Tensor& log_probs, const Tensor& given_labels,
                const NllLossOptions& options) {
  check_class_arguments("nll_loss", "log-probabilities", log_probs, given_labels, options.weight);
  const Tensor x = dense_rows(log_probs), labels = dense(given_labels);
  const Tensor weight = options.weight.defined() ? dense(options.weight) : Tensor();
  const TensorOptions acc{.dtype = acc_dtype(x.dtype()), .device = x.device()};
  const Tensor divisor = options.reduction == Reduction::mean ? Tensor::empty({}, acc) : Tensor();
  Tensor loss = Tensor::empty(options.reduction == Reduction::none ? labels.shape() : Shape{}, acc);
  launch(NllLossForward{.x = x.raw(),
                        .labels = labels.raw(),
                        .weight = weight.raw(),
                        .loss = loss.raw(),
                        .divisor = divisor.raw(),
                        .reduction = options.reduction,
                        .ignore_index = options.ignore_index});
  if (auto node = make_node<NllLossNode>(log_probs)) {
    node->labels = Saved(labels);
    node->weight = Saved(weight);
    node->divisor = Saved(divisor);
    node->x_shape = x.shape();
    node->x_options = x.options();
    node->reduction = options.reduction;
    node->ignore_index = options.ignore_index;
    attach(loss, std::move(node));
  }
  return loss;
}

void NllLossNode::backward(const Tensor& upstream, Gradients& grads) {
  const Tensor dy = dense(upstream);
  const Tensor dx = Tensor::empty(x_shape, x_options);
  launch(NllLossBackward{.labels = labels.get(name(), "labels").raw(),
                         .weight = weight.get(name(), "weight").raw(),
                         .divisor = divisor.get(name(), "divisor").raw(),
                         .dy = dy.raw(),
                         .dx = dx.raw(),
                         .reduction = reduction,
                         .ignore_index = ignore_index});
  grads.set(0, dx);
}

}  // namespace gradus
