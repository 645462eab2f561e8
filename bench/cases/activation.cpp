#include "autograd/ops/activation.h"

#include "bench/cases/op_case.h"
#include "tests/support/reference_activation.h"

namespace gradus {
namespace {

struct Function {
  std::string name;
  Activation activation;
  ref::ActivationParameters parameters;
  std::string label = {};  // empty: the name
};

const std::vector<Function>& functions() {
  static const std::vector<Function> list{
      {"relu", Activation::of<Relu>(), {}},
      {"relu6", Activation::of<Relu6>(), {}},
      {"leaky_relu", Activation::of<LeakyRelu>(), {.a = 0.01}},
      {"leaky_relu",
       Activation::of(LeakyRelu{.negative_slope = -0.5}),
       {.a = -0.5},
       "leaky_relu_m0p5"},
      {"elu", Activation::of<Elu>(), {.a = 1}},
      {"elu", Activation::of(Elu{.alpha = 0.75}), {.a = 0.75}, "elu_0p75"},
      {"gelu", Activation::of<Gelu>(), {}},
      {"gelu_tanh", Activation::of<GeluTanh>(), {}},
      {"silu", Activation::of<Silu>(), {}},
      {"mish", Activation::of<Mish>(), {}},
      {"sigmoid", Activation::of<Sigmoid>(), {}},
      {"tanh", Activation::of<Tanh>(), {}},
      {"softplus", Activation::of<Softplus>(), {.a = 1, .b = 20}},
      {"softplus",
       Activation::of(Softplus{.beta = 2, .threshold = 4}),
       {.a = 2, .b = 4},
       "softplus_2_4"},
      {"hardswish", Activation::of<Hardswish>(), {}},
      {"hardsigmoid", Activation::of<Hardsigmoid>(), {}},
  };
  return list;
}

OpCase make_case(const Function& function, const Shape& shape, const std::string& name,
                 bool channels_last = false, bool benchmark = false) {
  OpCase result;
  result.function = function.name;
  result.name = (function.label.empty() ? function.name : function.label) + "_" + name;
  result.inputs = {{.name = "x", .shape = shape, .std = 3, .channels_last = channels_last}};
  result.forward = [activation = function.activation](std::span<const Tensor> in) {
    return activate(in[0], activation);
  };
  result.reference = [name = function.name,
                      parameters = function.parameters](std::span<const ref::Array> in) {
    return ref::activation(name, in[0], parameters);
  };
  result.reference_backward = [name = function.name, parameters = function.parameters](
                                  std::span<const ref::Array> in, const ref::Array& dy) {
    return std::vector<ref::Array>{ref::activation_backward(name, in[0], dy, parameters)};
  };
  // Two terms of a gradient may cancel; what is only selected is exact.
  result.reduction = function.name.find("relu") == std::string::npos ? 1 : 0;
  result.pointwise = true;
  result.benchmark = benchmark;
  result.of_shape = [=](const Shape& x) { return make_case(function, x, name, channels_last); };
  result.any_rank = !channels_last;
  return result;
}

}  // namespace

std::vector<OpCase> activation_cases() {
  std::vector<OpCase> cases;
  for (const Function& f : functions()) {
    cases.push_back(make_case(f, {5}, "5"));
    cases.push_back(make_case(f, {37}, "37"));
    cases.push_back(make_case(f, {3, 5, 7}, "3x5x7"));
    cases.push_back(make_case(f, {2, 3, 4, 5}, "nhwc_2x3x4x5", true));
    cases.push_back(make_case(f, {0, 3}, "empty"));
    cases.push_back(make_case(f, {40001}, "40001"));
    if (!f.label.empty()) continue;
    cases.push_back(make_case(f, {128, 64, 32, 32}, "small", false, true));
    cases.push_back(make_case(f, {256, 128, 56, 56}, "large", false, true));
  }
  return cases;
}

}  // namespace gradus
