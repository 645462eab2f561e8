#include "autograd/ops/class_labels.h"

#include "autograd/tape.h"

namespace gradus {
namespace {

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

Tensor dense_rows(const Tensor& x) {
  const bool is_ready = x.is_contiguous() || x.is_contiguous(MemoryFormat::channels_last);
  return is_ready ? x.detach() : dense(x);
}

}  // namespace gradus
