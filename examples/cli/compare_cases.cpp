#include "examples/cli/compare_cases.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "autograd/grad_mode.h"
#include "bench/cases/draw.h"
#include "core/error.h"

namespace gradus::cli {
namespace {

using Kind = ComparedLayer::Input::Kind;

Kind kind_of(CaseInput::Kind kind) {
  switch (kind) {
    case CaseInput::Kind::value:
      return Kind::x;
    case CaseInput::Kind::parameter:
      return Kind::parameter;
    case CaseInput::Kind::state:
      return Kind::buffer;
    case CaseInput::Kind::label:
      return Kind::constant;
  }
  fail(ErrorCode::internal, "compare", "unknown kind of input");
}

bool is_asked_for(const OpCase& op_case, const std::vector<std::string>& layers) {
  return layers.empty() || std::ranges::find(layers, op_case.op) != layers.end() ||
         std::ranges::find(layers, op_case.function) != layers.end();
}

// Throws what the op says to an x of another shape.
void call_once(const OpCase& op_case) {
  std::vector<Tensor> inputs;
  for (const CaseInput& input : op_case.inputs) {
    inputs.push_back(Tensor::zeros(input.shape, {.dtype = input.dtype(DType::f32)}));
  }
  const NoGradGuard no_grad;
  op_case.forward(inputs);
}

// The first case of the function that takes the shape, one of its rank if there is any; otherwise
// says why the last one did not.
std::optional<OpCase> first_fitting(const std::vector<OpCase>& cases, const std::string& function,
                                    const Shape& shape, std::string& why) {
  for (const bool same_rank : {true, false}) {
    for (const OpCase& op_case : cases) {
      const Shape own = op_case.inputs.front().shape;
      if (op_case.function != function || op_case.benchmark || own.numel() == 0) continue;
      if (same_rank != (own.rank() == shape.rank())) continue;
      const std::string name = concat(op_case.op, " ", op_case.name);
      if (!same_rank && !op_case.any_rank) {
        if (why.empty()) why = concat(name, " has an x of rank ", own.rank(), ", got ", shape);
        continue;
      }
      try {
        OpCase result = resized(op_case, shape);
        call_once(result);
        return result;
      } catch (const Error& error) {
        why = concat(name, ": ", error.what());
      }
    }
  }
  return std::nullopt;
}

ComparedCases cases_of_shape(const std::vector<OpCase>& all, const CasesOptions& options) {
  ComparedCases result;
  std::set<std::string> seen;
  std::string why;
  for (const OpCase& op_case : all) {
    if (!seen.insert(op_case.function).second) continue;
    std::string of_this;
    if (auto fitting = first_fitting(all, op_case.function, *options.shape, of_this)) {
      result.cases.push_back(std::move(*fitting));
    } else {
      result.left_out.push_back(op_case.function);
      why = of_this;
    }
  }
  const bool named = !options.layers.empty();
  check(!result.cases.empty() && (!named || result.left_out.empty()), "compare", "--shape ",
        *options.shape, " does not fit: ", why.empty() ? "no layer takes it" : why);
  return result;
}

// Of the size that a small CNN has, or else the function's first benchmark, or its largest case.
OpCase timed_case(const std::vector<OpCase>& cases, const std::string& function) {
  const auto suits = [&](const OpCase& one) {
    const bool is_small = one.benchmark && one.name.find("small") != std::string::npos;
    const int64_t size = one.benchmark ? 0 : one.inputs.front().shape.numel();
    return std::tuple(one.function == function, is_small, one.benchmark, size);
  };
  OpCase result = std::ranges::max(cases, {}, suits);
  result.benchmark = true;
  return result;
}

}  // namespace

std::vector<std::string> layer_names() {
  std::vector<std::string> names;
  const auto add = [&](const std::string& name) {
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  };
  for (const std::string& op : ops_with_cases()) {
    add(op);
    for (const OpCase& op_case : cases_of(op)) add(op_case.function);
  }
  return names;
}

ComparedCases compared_cases(const CasesOptions& options) {
  std::vector<OpCase> all;
  for (const std::string& op : ops_with_cases()) {
    const std::vector<OpCase> cases = cases_of(op);
    std::set<std::string> timed;
    for (const OpCase& op_case : cases) {
      if (!is_asked_for(op_case, options.layers)) continue;
      if (!op_case.benchmark) all.push_back(op_case);
      const bool wants_time = options.timed && !options.shape;
      if (wants_time && timed.insert(op_case.function).second)
        all.push_back(timed_case(cases, op_case.function));
    }
  }
  if (options.shape) return cases_of_shape(all, options);
  return {std::move(all), {}};
}

ComparedLayer layer_of(const OpCase& op_case, DType dtype, uint64_t seed) {
  ComparedLayer layer{
      .layer = op_case.op, .case_name = op_case.name, .function = op_case.function, .dtype = dtype};
  const std::vector<ref::Array> arrays = draw_inputs(op_case, dtype, seed);
  const std::vector<Tensor> tensors = make_inputs(op_case, arrays, dtype, kCpu);
  for (size_t i = 0; i < tensors.size(); ++i) {
    layer.inputs.push_back(
        {op_case.inputs[i].name, tensors[i].detach(), kind_of(op_case.inputs[i].kind)});
  }
  const Tensor y = op_case.forward(tensors);
  ref::Array dy;
  if (op_case.reference_backward) dy = draw_upstream(y.shape(), y.dtype(), seed + 1);
  layer.outputs.push_back({"y", op_case.reference_backward
                                    ? Tensor::from_vector(dy.data, dy.shape, {.dtype = y.dtype()})
                                    : Tensor()});
  layer.forward = [forward = op_case.forward](std::span<const Tensor> in) {
    return std::vector<Tensor>{forward(in)};
  };
  const int64_t m = op_case.reduction;
  layer.lengths = {.y = m, .dx = m, .parameters = m};
  layer.for_itself = op_case.pointwise;
  layer.scale = op_case.scale;
  if (op_case.largest_stored_term && op_case.reference_backward) {
    layer.gradient_absolute = op_case.largest_stored_term({y.shape(), y.to_vector<double>()}, dy);
  }
  return layer;
}

}  // namespace gradus::cli
