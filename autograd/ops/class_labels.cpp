#include "autograd/ops/class_labels.h"

#include "autograd/tape.h"

namespace gradus {
namespace {

using Labels = TypeList<uint8_t, int32_t, int64_t>;

Shape without_classes(const Shape& shape) {
  Shape result;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (axis != 1) result.append(shape[axis]);
  }
  return result;
}

}  // namespace

void check_class_arguments(std::string_view op, std::string_view values, const Tensor& x,
                           const Tensor& labels, const Tensor& weight) {
  check(x.rank() >= 2 && is_floating(x.dtype()), op, "expected ", values,
        " [n, c, ...], floating, got ", x);
  check(x.size(1) > 0 || x.numel() == labels.numel(), op, "expected at least one class, got ", x);
  check(!is_floating(labels.dtype()) && labels.shape() == without_classes(x.shape()), op,
        "expected labels ", without_classes(x.shape()), " of u8, i32 or i64 for ", values, " ", x,
        ", got ", labels);
  check(labels.device() == x.device(), op, "all tensors must be on one device, got ", x, " and ",
        labels);
  if (!weight.defined()) return;
  const DType dtype = acc_dtype(x.dtype());
  check(weight.shape() == Shape{x.size(1)} && weight.dtype() == dtype, op,
        "expected class weights ", dtype, Shape{x.size(1)}, ", got ", weight);
  check(weight.device() == x.device(), op, "all tensors must be on one device, got ", x, " and ",
        weight);
  check(!weight.requires_grad(), op, "class weights have no gradient, got one that requires it");
}

void check_host_labels(Fault::Kind kind, const Tensor& labels, int64_t classes,
                       int64_t ignore_index) {
  const Tensor values = dense(labels);
  visit(Labels{}, labels.dtype(), [&](auto type) {
    const auto* label = values.raw().as<typename decltype(type)::type>();
    for (int64_t i = 0; i < values.numel(); ++i) {
      const int64_t value = static_cast<int64_t>(label[i]);
      if (value != ignore_index && (value < 0 || value >= classes)) {
        raise({.kind = kind, .value = value, .index = i, .limit = classes});
      }
    }
  });
}

Tensor dense_rows(const Tensor& x) {
  const bool is_ready = x.is_contiguous() || x.is_contiguous(MemoryFormat::channels_last);
  return is_ready ? x.detach() : dense(x);
}

}  // namespace gradus
