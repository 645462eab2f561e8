// Tensor::to, contiguous and clone: copies whose backward is a copy back.
#include "core/ops/copy.h"
#include "autograd/tape.h"
#include "core/launch.h"

namespace gradus {
namespace {

// x and y differ in dtype, device or layout; the gradient travels the other way.
struct CopyNode final : Node {
  DType x_dtype;
  Device x_device;

  std::string_view name() const override { return "copy"; }
  void backward(const Tensor& dy, Gradients& grads) override {
    grads.set(0, dy.to(x_dtype).to(x_device));
  }
};

Tensor recorded(const Tensor& x, Tensor y) {
  if (auto node = make_node<CopyNode>(x)) {
    node->x_dtype = x.dtype();
    node->x_device = x.device();
    attach(y, std::move(node));
  }
  return y;
}

Tensor copied(const Tensor& x, const TensorOptions& options) {
  Tensor y = Tensor::empty(x.shape(), options);
  launch(Copy{.x = x.raw(), .y = y.raw()});
  return recorded(x, y);
}

}  // namespace

Tensor Tensor::contiguous(MemoryFormat format) const {
  if (strides() == strides_of(shape(), format) || (rank() != 4 && is_contiguous(format)))
    return *this;
  return copied(*this, {.dtype = dtype(), .device = device(), .format = format});
}

Tensor Tensor::clone() const { return copied(*this, options()); }

Tensor Tensor::to(DType dtype) const {
  if (dtype == this->dtype()) return *this;
  check(!grad_enabled() || !requires_grad() || is_floating(dtype), "to",
        "a gradient cannot pass through ", dtype);
  TensorOptions options = this->options();
  options.dtype = dtype;
  return copied(*this, options);
}

Tensor Tensor::to(Device device) const {
  if (device == this->device()) return *this;
  TensorOptions options = this->options();
  const Tensor source = dense(*this, options.format);
  options.device = device;
  Tensor y = empty(shape(), options);
  // The copy belongs to the side that is not the CPU.
  const Device worker = device.type == DeviceType::cpu ? source.device() : device;
  with_backend(worker, [&](auto& backend) {
    copy_bytes(backend, y.raw().data, source.raw().data, static_cast<size_t>(source.nbytes()));
  });
  return recorded(*this, y);
}

}  // namespace gradus
