// Tensor's gradient state and in-place writes: declared in core/tensor.h, defined here.
#include "autograd/tape.h"
#include "core/launch.h"
#include "core/ops/arithmetic.h"
#include "core/ops/copy.h"

namespace gradus {
namespace {

// In-place writes have no backward: they are refused where one would be needed.
void require_writable(const Tensor& tensor, std::string_view op) {
  if (grad_enabled() && tensor.requires_grad()) {
    fail(ErrorCode::autograd, op, "an in-place write to ", tensor,
         tensor.is_leaf() ? ", a leaf that requires a gradient," : ", which has history,",
         " cannot be differentiated; do it under NoGradGuard");
  }
}

GradState& state_of(const Tensor& tensor) {
  auto& state = tensor.grad_state();
  if (state == nullptr) state = std::make_shared<GradState>(tensor);
  return *state;
}

}  // namespace

bool Tensor::requires_grad() const {
  return grad_state() != nullptr && grad_state()->requires_grad;
}

bool Tensor::is_leaf() const {
  const auto& state = grad_state();
  return state == nullptr || (state->node == nullptr && state->released_name.empty());
}

Tensor& Tensor::set_requires_grad(bool value) {
  check(is_floating(dtype()), "set_requires_grad", "only floating dtypes have gradients, got ",
        *this);
  if (!is_leaf())
    fail(ErrorCode::autograd, "set_requires_grad", "expected a leaf, got a result: ", *this);
  if (value || grad_state() != nullptr) state_of(*this).requires_grad = value;
  return *this;
}

Tensor Tensor::grad() const { return grad_state() == nullptr ? Tensor() : grad_state()->grad; }

void Tensor::set_grad(const Tensor& grad) {
  check(!grad.defined() || (grad.shape() == shape() && grad.dtype() == dtype()), "set_grad",
        "the gradient of ", *this, " must be like it, got ", grad);
  state_of(*this).grad = grad;
}

void Tensor::zero_grad() {
  if (grad_state() != nullptr) grad_state()->grad = Tensor();
}

void Tensor::backward(const Tensor& dy, bool retain_graph) const {
  run_backward(*this, dy, retain_graph);
}

void Tensor::register_hook(Hook hook) const {
  if (!requires_grad())
    fail(ErrorCode::autograd, "register_hook", *this, " does not require a gradient");
  grad_state()->hooks.push_back(std::move(hook));
}

Tensor& Tensor::zero_() { return fill_(0.0); }

Tensor& Tensor::fill_(double value) {
  require_writable(*this, "fill_");
  launch(Fill{.y = raw(), .value = value});
  storage()->bump_version();
  return *this;
}

Tensor& Tensor::copy_(const Tensor& source) {
  require_writable(*this, "copy_");
  check(broadcast_shapes(shape(), source.shape(), "copy_") == shape(), "copy_", "a source ", source,
        " does not broadcast to ", *this);
  const Tensor local = source.detach().to(device());
  AnyView x = local.raw();
  x.strides = broadcast_strides(x.shape, x.strides, shape());
  x.shape = shape();
  launch(Copy{.x = x, .y = raw()});
  storage()->bump_version();
  return *this;
}

Tensor& Tensor::add_(const Tensor& other, double alpha) {
  require_writable(*this, "add_");
  check(broadcast_shapes(shape(), other.shape(), "add_") == shape() && other.dtype() == dtype(),
        "add_", "expected a tensor of this dtype that broadcasts to ", *this, ", got ", other);
  launch(Arithmetic{
      .kind = Arithmetic::Kind::add, .a = raw(), .b = other.raw(), .y = raw(), .alpha = alpha});
  storage()->bump_version();
  return *this;
}

Tensor& Tensor::mul_(double factor) {
  require_writable(*this, "mul_");
  launch(Affine{.x = raw(), .y = raw(), .scale = factor});
  storage()->bump_version();
  return *this;
}

}  // namespace gradus
