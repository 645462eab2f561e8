#include "autograd/ops/activation.h"

#include "autograd/node.h"
#include "core/launch.h"

namespace gradus {
namespace {

struct ActivationNode final : Node {
  Activation activation;
  bool saves_output;
  Saved saved;

  std::string_view name() const override { return to_string(activation); }
  void backward(const Tensor& dy, Gradients& grads) override {
    const Tensor v = saved.get(name(), saves_output ? "y" : "x");
    const Tensor dx = empty_like(v);
    launch(ActivationBackward{
        .activation = activation, .saved = v.raw(), .dy = dy.raw(), .dx = dx.raw()});
    grads.set(0, dx);
  }
};

template <class... Fs>
std::vector<std::string> names_of(TypeList<Fs...>) {
  return {std::string(Fs::name)...};
}

}  // namespace

Tensor activate(const Tensor& x, Activation activation) {
  check(is_floating(x.dtype()), to_string(activation), "expected a floating dtype, got ", x);
  Tensor y = empty_like(x);
  launch(ActivationForward{.activation = activation, .x = x.raw(), .y = y.raw()});
  if (auto node = make_node<ActivationNode>(x)) {
    node->activation = activation;
    visit_activation(activation,
                     [&](auto f) { node->saves_output = decltype(f)::type::saves_output; });
    node->saved = Saved(node->saves_output ? y : x);
    attach(y, std::move(node));
  }
  return y;
}

Tensor relu(const Tensor& x) { return activate(x, activation_of<Relu>); }

std::string_view to_string(Activation activation) {
  std::string_view name;
  visit_activation(activation, [&](auto f) { name = decltype(f)::type::name; });
  return name;
}

std::vector<std::string> activation_names() { return names_of(Activations{}); }

Activation parse_activation(std::string_view name) {
  const std::vector<std::string> names = activation_names();
  std::string choices;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return Activation{static_cast<uint8_t>(i)};
    choices += (i ? ", " : "") + names[i];
  }
  fail(ErrorCode::invalid_argument, "activation", "expected one of ", choices, ", got '", name,
       "'");
}

}  // namespace gradus
