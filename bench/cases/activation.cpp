#include "autograd/ops/activation.h"

#include "bench/cases/op_case.h"

namespace gradus {
namespace {

struct Function {
  Activation activation;
  ref::Array (*reference)(const ref::Array&);
  ref::Array (*backward)(const ref::Array& x, const ref::Array& dy);
};

const std::vector<Function>& functions() {
  static const std::vector<Function> list{
      {activation_of<Relu>, ref::relu, ref::relu_backward},
  };
  return list;
}

OpCase make_case(const Function& function, const Shape& shape, const std::string& name,
                 bool channels_last = false, bool benchmark = false) {
  OpCase result;
  result.function = to_string(function.activation);
  result.name = result.function + "_" + name;
  result.inputs = {{.name = "x", .shape = shape, .std = 3, .channels_last = channels_last}};
  result.forward = [activation = function.activation](std::span<const Tensor> in) {
    return activate(in[0], activation);
  };
  result.reference = [f = function.reference](std::span<const ref::Array> in) { return f(in[0]); };
  result.reference_backward = [f = function.backward](std::span<const ref::Array> in,
                                                      const ref::Array& dy) {
    return std::vector<ref::Array>{f(in[0], dy)};
  };
  result.reduction = 0;
  result.benchmark = benchmark;
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
    cases.push_back(make_case(f, {128, 64, 32, 32}, "128x64x32x32", false, true));
    cases.push_back(make_case(f, {256, 128, 56, 56}, "256x128x56x56", false, true));
  }
  return cases;
}

}  // namespace gradus
