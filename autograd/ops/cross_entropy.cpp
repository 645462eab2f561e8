#include "autograd/ops/cross_entropy.h"

#include "autograd/ops/class_labels.h"
#include "autograd/tape.h"
#include "core/launch.h"
#include "core/ops/cross_entropy.h"

namespace gradus {
namespace {

struct CrossEntropyNode final : Node {
  Saved x, labels, weight, max, log_sum, divisor;
  Reduction reduction;
  double label_smoothing;
  int64_t ignore_index;

  std::string_view name() const override { return "cross_entropy"; }
  void backward(const Tensor& dy, Gradients& grads) override;
};

void check_arguments(const Tensor& x, const Tensor& labels, const CrossEntropyOptions& options) {
  constexpr std::string_view op = "cross_entropy";
  check_class_arguments(op, "logits", x, labels, options.weight);
  check(options.label_smoothing >= 0 && options.label_smoothing <= 1, op,
        "label_smoothing must be 0 to 1, got ", options.label_smoothing);
}

}  // namespace

void check_labels(const Tensor& labels, int64_t classes, int64_t ignore_index) {
  check(!is_floating(labels.dtype()), "check_labels", "expected labels of u8, i32 or i64, got ",
        labels);
  const Tensor values = dense(labels.to(kCpu));
  check_host_labels(Fault::Kind::label, values.raw(), classes, ignore_index);
}

Tensor cross_entropy(const Tensor& logits, const Tensor& given_labels,
                     const CrossEntropyOptions& options) {
  check_arguments(logits, given_labels, options);
  const Tensor x = dense_rows(logits), labels = dense(given_labels);
  const Tensor weight = options.weight.defined() ? dense(options.weight) : Tensor();
  const TensorOptions acc{.dtype = acc_dtype(x.dtype()), .device = x.device()};
  const bool is_mean = options.reduction == Reduction::mean;
  const Tensor max = Tensor::empty(labels.shape(), acc), log_sum = empty_like(max);
  const Tensor divisor = is_mean ? Tensor::empty({}, acc) : Tensor();
  Tensor loss = Tensor::empty(options.reduction == Reduction::none ? labels.shape() : Shape{}, acc);
  launch(CrossEntropyForward{.x = x.raw(),
                             .labels = labels.raw(),
                             .weight = weight.raw(),
                             .loss = loss.raw(),
                             .max = max.raw(),
                             .log_sum = log_sum.raw(),
                             .divisor = divisor.raw(),
                             .reduction = options.reduction,
                             .label_smoothing = options.label_smoothing,
                             .ignore_index = options.ignore_index});
  if (auto node = make_node<CrossEntropyNode>(logits)) {
    node->x = Saved(x);
    node->labels = Saved(labels);
    node->weight = Saved(weight);
    node->max = Saved(max);
    node->log_sum = Saved(log_sum);
    node->divisor = Saved(divisor);
    node->reduction = options.reduction;
    node->label_smoothing = options.label_smoothing;
    node->ignore_index = options.ignore_index;
    attach(loss, std::move(node));
  }
  return loss;
}

void CrossEntropyNode::backward(const Tensor& upstream, Gradients& grads) {
  const Tensor x = this->x.get(name(), "logits");
  const Tensor dy = dense(upstream);
  const Tensor dx = empty_like(x);
  launch(CrossEntropyBackward{.x = x.raw(),
                              .labels = labels.get(name(), "labels").raw(),
                              .weight = weight.get(name(), "weight").raw(),
                              .max = max.get(name(), "max").raw(),
                              .log_sum = log_sum.get(name(), "log_sum").raw(),
                              .divisor = divisor.get(name(), "divisor").raw(),
                              .dy = dy.raw(),
                              .dx = dx.raw(),
                              .reduction = reduction,
                              .label_smoothing = label_smoothing,
                              .ignore_index = ignore_index});
  grads.set(0, dx);
}

}  // namespace gradus
