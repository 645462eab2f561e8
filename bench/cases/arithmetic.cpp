#include "autograd/ops/arithmetic.h"

#include <algorithm>

#include "bench/cases/op_case.h"

namespace gradus {
namespace {

// One of the four operations with its reference.
struct Operation {
  std::string name;
  Tensor (*forward)(const Tensor&, const Tensor&);
  ref::Array (*reference)(const ref::Array&, const ref::Array&);
  ref::PairGradients (*backward)(const ref::Array&, const ref::Array&, const ref::Array&);
  bool positive_b = false;
};

const std::vector<Operation>& operations() {
  static const std::vector<Operation> list{
      {"add", [](const Tensor& a, const Tensor& b) { return a + b; }, ref::add, ref::add_backward},
      {"sub", [](const Tensor& a, const Tensor& b) { return a - b; }, ref::sub, ref::sub_backward},
      {"mul", [](const Tensor& a, const Tensor& b) { return a * b; }, ref::mul, ref::mul_backward},
      {"div", [](const Tensor& a, const Tensor& b) { return a / b; }, ref::div, ref::div_backward,
       true},
  };
  return list;
}

struct Operands {
  std::string name;
  Shape a, b;
  bool channels_last = false;
  bool benchmark = false;
};

OpCase make_case(const Operation& op, const Operands& operands) {
  const Shape y = broadcast_shapes(operands.a, operands.b, "cases");
  OpCase result;
  result.function = op.name;
  result.name = op.name + "_" + operands.name;
  result.inputs = {{.name = "a", .shape = operands.a, .channels_last = operands.channels_last},
                   {.name = "b", .shape = operands.b, .positive = op.positive_b}};
  result.forward = [f = op.forward](std::span<const Tensor> in) { return f(in[0], in[1]); };
  result.reference = [f = op.reference](std::span<const ref::Array> in) { return f(in[0], in[1]); };
  result.reference_backward = [f = op.backward](std::span<const ref::Array> in,
                                                const ref::Array& dy) {
    ref::PairGradients grads = f(in[0], in[1], dy);
    return std::vector<ref::Array>{std::move(grads.da), std::move(grads.db)};
  };
  const int64_t smallest = std::min(operands.a.numel(), operands.b.numel());
  result.reduction = smallest == 0 ? 1 : y.numel() / smallest;
  result.benchmark = operands.benchmark;
  result.of_shape = [op, operands](const Shape& a) {
    Operands other = operands;
    other.a = a;
    const int skipped = a.rank() - operands.b.rank();
    for (int axis = std::max(0, -skipped); axis < operands.b.rank(); ++axis) {
      if (operands.b[axis] == operands.a[skipped + axis]) other.b[axis] = a[skipped + axis];
    }
    return make_case(op, other);
  };
  result.any_rank = operands.b.rank() == 0;
  return result;
}

// y = scale x + shift.
OpCase affine_case(const Shape& shape, double scale, double shift, const std::string& name) {
  const ref::Array factor = ref::full({}, scale), term = ref::full({}, shift);
  OpCase result;
  result.function = "affine";
  result.name = "affine_" + name;
  result.inputs = {{.name = "x", .shape = shape}};
  result.forward = [=](std::span<const Tensor> in) { return affine(in[0], scale, shift); };
  result.reference = [=](std::span<const ref::Array> in) {
    return ref::add(ref::mul(in[0], factor), term);
  };
  result.reference_backward = [=](std::span<const ref::Array>, const ref::Array& dy) {
    return std::vector<ref::Array>{ref::mul(dy, factor)};
  };
  result.of_shape = [=](const Shape& x) { return affine_case(x, scale, shift, name); };
  result.any_rank = true;
  return result;
}

}  // namespace

std::vector<OpCase> arithmetic_cases() {
  const std::vector<Operands> shapes{
      {"1", {1}, {1}},
      {"37", {37}, {37}},
      {"scalar_b", {3, 11}, {}},
      {"scalar_a", {1}, {5, 7}},
      {"row", {5, 7}, {7}},
      {"column", {5, 7}, {5, 1}},
      {"outer", {6, 1}, {1, 5}},
      {"bias_nchw", {2, 3, 4, 5}, {3, 1, 1}},
      {"bias_nhwc", {2, 3, 4, 5}, {3, 1, 1}, true},
      {"bias_nchw_7x7", {3, 5, 7, 7}, {5, 1, 1}},
      {"bias_nchw_4x8", {2, 3, 4, 8}, {3, 1, 1}},
      {"bias_nhwc_c16", {2, 16, 3, 5}, {16, 1, 1}, true},
      {"bias_of_samples", {3, 2, 3, 5}, {3, 1, 1, 1}},
      {"bias_first", {5, 1, 1}, {2, 5, 3, 3}},
      {"row_24", {5, 24}, {24}},
      {"two_of_three", {2, 3, 4, 8}, {3, 1, 8}},
      {"mixed_formats", {2, 3, 4, 5}, {2, 3, 4, 5}, true},
      {"long_row", {2, 20001}, {20001}},
      {"empty", {0, 3}, {0, 3}},
      {"residual_small", {128, 64, 32, 32}, {128, 64, 32, 32}, false, true},
      {"residual_large", {256, 128, 56, 56}, {256, 128, 56, 56}, false, true},
      {"bias_nchw_small", {128, 64, 32, 32}, {64, 1, 1}, false, true},
      {"bias_nchw_large", {256, 128, 56, 56}, {128, 1, 1}, false, true},
      {"bias_nhwc_large", {256, 128, 56, 56}, {128, 1, 1}, true, true},
  };
  std::vector<OpCase> cases;
  for (const Operation& op : operations()) {
    for (const Operands& operands : shapes) cases.push_back(make_case(op, operands));
  }
  cases.push_back(affine_case({3, 5}, -1.5, 0.25, "3x5"));
  cases.push_back(affine_case({40001}, 0.1, 0, "40001"));
  return cases;
}

}  // namespace gradus
