#include "autograd/ops/cross_entropy.h"

#include "autograd/tape.h"
#include "core/fault.h"
#include "core/launch.h"
#include "core/ops/cross_entropy.h"

namespace gradus {
namespace {

using Labels = TypeList<uint8_t, int32_t, int64_t>;

struct CrossEntropyNode final : Node {
  Saved x, labels, weight, max, log_sum, divisor;
  Reduction reduction;
  double label_smoothing;
  int64_t ignore_index;

  std::string_view name() const override { return "cross_entropy"; }
  void backward(const Tensor& dy, Gradients& grads) override;
};

Shape without_classes(const Shape& shape) {
  Shape result;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (axis != 1) result.append(shape[axis]);
  }
  return result;
}

bool is_label(DType dtype) { return !is_floating(dtype); }

void check_arguments(const Tensor& x, const Tensor& labels, const CrossEntropyOptions& options) {
  constexpr std::string_view op = "cross_entropy";
  check(x.rank() >= 2 && is_floating(x.dtype()), op, "expected logits [n, c, ...], floating, got ",
        x);
  check(x.size(1) > 0 || x.numel() == labels.numel(), op, "expected at least one class, got ", x);
  check(is_label(labels.dtype()) && labels.shape() == without_classes(x.shape()), op,
        "expected labels ", without_classes(x.shape()), " of u8, i32 or i64 for logits ", x,
        ", got ", labels);
  check(labels.device() == x.device(), op, "all tensors must be on one device, got ", x, " and ",
        labels);
  check(options.label_smoothing >= 0 && options.label_smoothing <= 1, op,
        "label_smoothing must be 0 to 1, got ", options.label_smoothing);
  if (!options.weight.defined()) return;
  const Tensor& weight = options.weight;
  const DType dtype = acc_dtype(x.dtype());
  check(weight.shape() == Shape{x.size(1)} && weight.dtype() == dtype, op,
        "expected class weights ", dtype, Shape{x.size(1)}, ", got ", weight);
  check(weight.device() == x.device(), op, "all tensors must be on one device, got ", x, " and ",
        weight);
  check(!weight.requires_grad(), op, "class weights have no gradient, got one that requires it");
}

// On the host.
void check_host_labels(const Tensor& labels, int64_t classes, int64_t ignore_index) {
  const Tensor values = dense(labels);
  visit(Labels{}, labels.dtype(), [&](auto type) {
    const auto* label = values.raw().as<typename decltype(type)::type>();
    for (int64_t i = 0; i < values.numel(); ++i) {
      const int64_t value = static_cast<int64_t>(label[i]);
      if (value != ignore_index && (value < 0 || value >= classes)) {
        raise({.kind = Fault::Kind::label, .value = value, .index = i, .limit = classes});
      }
    }
  });
}

Tensor dense_either(const Tensor& x) {
  const bool is_ready = x.is_contiguous() || x.is_contiguous(MemoryFormat::channels_last);
  return is_ready ? x.detach() : dense(x);
}

}  // namespace

void check_labels(const Tensor& labels, int64_t classes, int64_t ignore_index) {
  check(is_label(labels.dtype()), "check_labels", "expected labels of u8, i32 or i64, got ",
        labels);
  check_host_labels(labels.detach().to(kCpu), classes, ignore_index);
}

Tensor cross_entropy(const Tensor& logits, const Tensor& given_labels,
                     const CrossEntropyOptions& options) {
  check_arguments(logits, given_labels, options);
  if (logits.device() == kCpu) {
    check_host_labels(given_labels, logits.size(1), options.ignore_index);
  }
  const Tensor x = dense_either(logits), labels = dense(given_labels);
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
