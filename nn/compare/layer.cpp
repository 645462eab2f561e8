#include "nn/compare/layer.h"

#include <algorithm>

#include "core/launch.h"
#include "nn/compare/differences.h"
#include "nn/compare/measure.h"

namespace gradus {
namespace {

using Kind = ComparedLayer::Input::Kind;

// One value of a run, and how it is judged.
struct Value {
  std::string name;
  CompareDirection direction;
  int64_t length;
  Tensor tensor;
  bool is_output = false;
  std::optional<size_t> input;  // whose gradient it is
};

std::vector<Value> values_of(const ComparedLayer& layer, const LayerRun& run) {
  using enum CompareDirection;
  std::vector<Value> values;
  for (size_t i = 0; i < run.outputs.size(); ++i) {
    values.push_back(
        {layer.outputs[i].name, forward, layer.lengths.y, run.outputs[i], true, std::nullopt});
  }
  size_t buffer = 0, grad = 0;
  for (size_t i = 0; i < layer.inputs.size(); ++i) {
    const ComparedLayer::Input& input = layer.inputs[i];
    if (input.kind == Kind::buffer) {
      values.push_back(
          {input.name, forward, layer.lengths.y, run.buffers[buffer++], false, std::nullopt});
    } else if (input.wants_grad()) {
      const bool is_x = input.kind == Kind::x;
      values.push_back({"d" + input.name, backward,
                        is_x ? layer.lengths.dx : layer.lengths.parameters, run.grads[grad++],
                        false, i});
    }
  }
  return values;
}

Numbers numbers(const Value& value, const Tensor& like) {
  if (value.tensor.defined()) return Numbers(value.tensor);
  return Numbers(Tensor::zeros(like.shape(), {.dtype = DType::f64}));  // no gradient arrived
}

// What the layer is, with nothing compared.
CompareRow row_of(const ComparedLayer& layer) {
  const nn::SumLengths& m = layer.lengths;
  return {.layer = layer.layer,
          .path = layer.path,
          .case_name = layer.case_name,
          .function = layer.function,
          .shape = layer.inputs.front().value.shape(),
          .dtype = layer.dtype,
          .reduction = std::max({m.y, m.dx, m.parameters})};
}

Tolerance tolerance_of(const ComparedLayer& layer, const Value& value, DType dtype,
                       const JudgeOptions& options) {
  if (!is_floating(dtype)) return {};
  if (options.tolerance > 0) return {.of_scale = options.tolerance};
  Tolerance result = tolerance(dtype, value.length);
  // Each of a handful of results in between is rounded to the storage type.
  if (layer.lengths.rounds_between) result.of_scale += 8 * unit_roundoff(layer.dtype);
  if (value.direction == CompareDirection::backward) {
    result.absolute += ulp(1, dtype) / 2 * layer.gradient_absolute;
  }
  return result;
}

}  // namespace

Tensor operand(const Tensor& value, Device device, bool wide) {
  const bool widens = wide && is_floating(value.dtype());
  const Tensor moved = (widens ? value.detach().to(DType::f64) : value.detach()).to(device);
  return moved.storage() == value.storage() ? moved.clone() : moved;
}

std::vector<Tensor> operands_of(const ComparedLayer& layer, Device device, bool wide) {
  std::vector<Tensor> operands;
  for (const ComparedLayer::Input& input : layer.inputs) {
    operands.push_back(operand(input.value, device, wide));
    if (input.wants_grad()) operands.back().set_requires_grad(true);
  }
  return operands;
}

std::vector<Tensor> upstream_of(const ComparedLayer& layer, std::span<const Tensor> like) {
  std::vector<Tensor> upstream;
  for (size_t i = 0; i < like.size(); ++i) {
    const Tensor& dy = layer.outputs[i].dy;
    const bool flows = dy.defined() && like[i].requires_grad();
    upstream.push_back(flows ? dy.to(like[i].dtype()).to(like[i].device()) : Tensor());
  }
  return upstream;
}

LayerRun run_layer(const ComparedLayer& layer, const std::vector<Tensor>& operands,
                   const std::vector<Tensor>& upstream, const std::function<void()>& between) {
  LayerRun run;
  {
    const FixedDraws draws(operands.front().device());
    run.outputs = layer.forward(operands);
    // What a kernel found, or died of, is thrown before a destructor meets it.
    with_backend(operands.front().device(), [](auto& backend) { synchronize(backend); });
  }
  if (between) between();
  run.upstream = upstream.empty() ? upstream_of(layer, run.outputs) : upstream;
  for (size_t i = 0; i < run.outputs.size(); ++i) {
    const Tensor& y = run.outputs[i];
    if (run.upstream[i].defined() && y.requires_grad()) y.backward(run.upstream[i], true);
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    if (layer.inputs[i].kind == Kind::buffer) run.buffers.push_back(operands[i]);
    if (layer.inputs[i].wants_grad()) run.grads.push_back(operands[i].grad());
  }
  for (Tensor& y : run.outputs) y = y.detach();
  return run;
}

LayerRun run_layer(const ComparedLayer& layer, Device device, bool wide) {
  return run_layer(layer, operands_of(layer, device, wide));
}

CompareRow judge_layer(const ComparedLayer& layer, const JudgeOptions& options) {
  const LayerRun reference = run_layer(layer, kCpu, true);
  const std::vector<Value> wanted = values_of(layer, reference);
  std::vector<std::vector<Value>> got;
  for (const Device device : options.devices) {
    got.push_back(values_of(layer, run_layer(layer, device, false)));
  }
  const std::vector<double> scales = measured_scales(layer, reference);
  CompareRow row = row_of(layer);
  for (size_t v = 0; v < wanted.size(); ++v) {
    const Tensor& like = wanted[v].input ? layer.inputs[*wanted[v].input].value : wanted[v].tensor;
    const Tensor& first = got[0][v].tensor;
    const DType dtype = first.defined() ? first.dtype() : like.dtype();
    CompareValue value{.name = wanted[v].name,
                       .direction = wanted[v].direction,
                       .dtype = dtype,
                       .shape = like.shape()};
    const Numbers want = numbers(wanted[v], like);
    std::vector<Numbers> numbers_of;
    for (const auto& one : got) numbers_of.push_back(numbers(one[v], like));
    const MeasureOptions measure_options{
        .tolerance = tolerance_of(layer, wanted[v], dtype, options),
        .scale = std::max(layer.scale, scales[v]),
        .for_itself = layer.for_itself && wanted[v].is_output};
    for (size_t d = 0; d < options.devices.size(); ++d) {
      value.errors.push_back(
          measure(numbers_of, d, want, options.devices[d], dtype, measure_options));
    }
    if (wanted[v].input && options.differences) {
      value.differences = differences_of(layer, *wanted[v].input, reference);
    }
    row.values.push_back(std::move(value));
  }
  return row;
}

}  // namespace gradus
