#include "autograd/ops/activation.h"

#include "autograd/node.h"
#include "autograd/tape.h"
#include "core/launch.h"

namespace gradus {
namespace {

Saves saves_of(const Activation& activation) {
  Saves saves = Saves::x;
  visit_activation(activation, [&](auto function) { saves = decltype(function)::saves; });
  return saves;
}

struct ActivationNode final : Node {
  Activation activation;
  Saves saves;
  Saved saved;
  Shape shape;
  TensorOptions options;  // of y

  std::string_view name() const override { return to_string(activation); }
  void backward(const Tensor& dy_given, Gradients& grads) override;
};

// Keeps what the backward pass needs; the mask follows the order of memory, so that x and y must be
// stored alike.
Tensor activate_recorded(const Tensor& x_given, const Activation& activation,
                         std::shared_ptr<ActivationNode> node) {
  node->activation = activation;
  node->saves = saves_of(activation);
  const bool masked = node->saves == Saves::mask;
  Tensor y = empty_like(x_given);
  node->options = y.options();
  node->shape = y.shape();
  const Tensor x = masked ? dense(x_given.detach(), node->options.format) : x_given;
  Tensor mask;
  if (masked) {
    mask = Tensor::empty({mask_bytes(x.numel())}, {.dtype = DType::u8, .device = x.device()});
  }
  launch(
      ActivationForward{.activation = activation, .x = x.raw(), .y = y.raw(), .mask = mask.raw()});
  node->saved = Saved(masked ? mask : x);
  attach(y, std::move(node));
  return y;
}

template <class... Fs>
std::vector<std::string> names_of(TypeList<Fs...>) {
  return {std::string(Fs::name)...};
}

template <class... Fs>
std::vector<Activation> defaults_of(TypeList<Fs...>) {
  return {Activation::of<Fs>()...};
}

}  // namespace

Tensor activate(const Tensor& x, const Activation& activation) {
  check(is_floating(x.dtype()), to_string(activation), "expected a floating dtype, got ", x);
  if (auto node = make_node<ActivationNode>(x)) {
    return activate_recorded(x, activation, std::move(node));
  }
  Tensor y = empty_like(x);
  launch(ActivationForward{.activation = activation, .x = x.raw(), .y = y.raw(), .mask = {}});
  return y;
}

void ActivationNode::backward(const Tensor& dy_given, Gradients& grads) {
  const bool masked = saves == Saves::mask;
  const Tensor v = saved.get(name(), masked ? "mask" : "x");
  const Tensor dy = masked ? dense(dy_given, options.format) : dy_given;
  const Tensor dx = Tensor::empty(shape, options);
  launch(ActivationBackward{
      .activation = activation, .saved = v.raw(), .dy = dy.raw(), .dx = dx.raw()});
  grads.set(0, dx);
}

Tensor relu(const Tensor& x) { return activate(x, Activation::of<Relu>()); }
Tensor relu6(const Tensor& x) { return activate(x, Activation::of<Relu6>()); }
Tensor leaky_relu(const Tensor& x, double negative_slope) {
  return activate(x, Activation::of(LeakyRelu{.negative_slope = negative_slope}));
}
Tensor elu(const Tensor& x, double alpha) {
  return activate(x, Activation::of(Elu{.alpha = alpha}));
}
Tensor gelu(const Tensor& x, std::string_view approximate) {
  return activate(x, make_gelu(approximate));
}
Tensor silu(const Tensor& x) { return activate(x, Activation::of<Silu>()); }
Tensor mish(const Tensor& x) { return activate(x, Activation::of<Mish>()); }
Tensor sigmoid(const Tensor& x) { return activate(x, Activation::of<Sigmoid>()); }
Tensor tanh(const Tensor& x) { return activate(x, Activation::of<Tanh>()); }
Tensor softplus(const Tensor& x, double beta, double threshold) {
  return activate(x, make_softplus(beta, threshold));
}
Tensor hardswish(const Tensor& x) { return activate(x, Activation::of<Hardswish>()); }
Tensor hardsigmoid(const Tensor& x) { return activate(x, Activation::of<Hardsigmoid>()); }

Activation make_gelu(std::string_view approximate) {
  check(approximate == "none" || approximate == "tanh", "gelu",
        "approximate must be none or tanh, got '", approximate, "'");
  return approximate == "tanh" ? Activation::of<GeluTanh>() : Activation::of<Gelu>();
}

Activation make_softplus(double beta, double threshold) {
  // In f32, where 16-bit types compute, beta and 1 / beta are normal numbers.
  check(beta >= 0x1p-126 && beta <= 0x1p126, "softplus", "beta must be 2^-126 to 2^126, got ",
        beta);
  return Activation::of(Softplus{.beta = beta, .threshold = threshold});
}

std::string_view to_string(const Activation& activation) {
  std::string_view name;
  visit_activation(activation, [&](auto function) { name = decltype(function)::name; });
  return name;
}

std::vector<std::string> activation_names() { return names_of(Activations{}); }

Activation parse_activation(std::string_view name) {
  static const std::vector<Activation> defaults = defaults_of(Activations{});
  std::string choices;
  for (const Activation& activation : defaults) {
    if (to_string(activation) == name) return activation;
    choices += concat(choices.empty() ? "" : ", ", to_string(activation));
  }
  fail(ErrorCode::invalid_argument, "activation", "expected one of ", choices, ", got '", name,
       "'");
}

}  // namespace gradus
