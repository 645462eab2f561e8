// Tensor's gradient state and in-place writes: declared in core/tensor.h, defined here.
#include <algorithm>
#include <utility>

#include "autograd/tape.h"
#include "core/launch.h"
#include "core/ops/arithmetic.h"
#include "core/ops/copy.h"
#include "core/share_memory.h"

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

// Where one element stands for several, the result of a write would depend on its order.
void require_distinct_elements(const Tensor& tensor, std::string_view op) {
  Strides strides;
  Shape extents;
  for (int axis = 0; axis < tensor.rank(); ++axis) {
    if (tensor.size(axis) == 1) continue;
    strides.append(tensor.strides()[axis]);
    extents.append(tensor.size(axis));
  }
  // Axes from the smallest stride up: each must step over all that the smaller ones reach.
  int64_t reach = 0;
  for (int done = 0; done < strides.rank() && tensor.numel() > 0; ++done) {
    int next = done;
    for (int i = done + 1; i < strides.rank(); ++i) {
      if (strides[i] < strides[next]) next = i;
    }
    std::swap(strides[done], strides[next]);
    std::swap(extents[done], extents[next]);
    check(strides[done] > reach, op, tensor, " with strides ", tensor.strides(),
          " may store one element for several; write to a clone()");
    reach += (extents[done] - 1) * strides[done];
  }
}

// An in-place write keeps no history, so what is written must have none either.
void require_no_history(const Tensor& source, std::string_view op) {
  if (grad_enabled() && source.requires_grad()) {
    fail(ErrorCode::autograd, op, "writing ", source,
         ", which requires a gradient, in place would lose it; pass its detach()");
  }
}

// `source` without history, as a copy if it shares memory with `target` other than element by
// element.
Tensor readable_beside(const Tensor& target, const Tensor& source) {
  const Tensor plain = source.detach();
  const bool same_view = plain.raw().data == target.raw().data && plain.shape() == target.shape() &&
                         plain.strides() == target.strides() && plain.dtype() == target.dtype();
  return share_memory(*plain.storage(), *target.storage()) && !same_view ? plain.clone() : plain;
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
  check(!value || is_floating(dtype()), "set_requires_grad",
        "only floating dtypes have gradients, got ", *this);
  if (!is_leaf())
    fail(ErrorCode::autograd, "set_requires_grad", "expected a leaf, got a result: ", *this);
  if (value || grad_state() != nullptr) state_of(*this).requires_grad = value;
  return *this;
}

Tensor Tensor::grad() const { return grad_state() == nullptr ? Tensor() : grad_state()->grad; }

void Tensor::set_grad(const Tensor& grad) {
  check(!grad.defined() ||
            (grad.shape() == shape() && grad.dtype() == dtype() && grad.device() == device()),
        "set_grad", "the gradient of ", *this, " must be like it, got ", grad);
  state_of(*this).grad = grad.defined() ? grad.detach() : grad;  // with its history: a cycle
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
  check(hook != nullptr, "register_hook", "expected a hook, got an empty function");
  grad_state()->hooks.push_back(std::move(hook));
}

Tensor& Tensor::zero_() { return fill_(0.0); }

Tensor& Tensor::fill_(double value) {
  require_writable(*this, "fill_");
  AnyView y = raw();
  for (int axis = 0; axis < rank(); ++axis) {  // a repeated element is written once
    if (y.strides[axis] == 0) y.shape[axis] = std::min<int64_t>(y.shape[axis], 1);
  }
  launch(Fill{.y = y, .value = value});
  storage()->bump_version();
  return *this;
}

Tensor& Tensor::copy_(const Tensor& source) {
  require_writable(*this, "copy_");
  check(broadcast_shapes(shape(), source.shape(), "copy_") == shape(), "copy_", "a source ", source,
        " does not broadcast to ", *this);
  require_no_history(source, "copy_");
  require_distinct_elements(*this, "copy_");
  const Tensor local = readable_beside(*this, source).to(device());
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
  require_no_history(other, "add_");
  require_distinct_elements(*this, "add_");
  const Tensor b = readable_beside(*this, other);
  launch(Arithmetic{
      .kind = Arithmetic::Kind::add, .a = raw(), .b = b.raw(), .y = raw(), .alpha = alpha});
  storage()->bump_version();
  return *this;
}

Tensor& Tensor::mul_(double factor) {
  require_writable(*this, "mul_");
  require_distinct_elements(*this, "mul_");
  launch(Affine{.x = raw(), .y = raw(), .scale = factor, .shift = -0.0});
  storage()->bump_version();
  return *this;
}

}  // namespace gradus
