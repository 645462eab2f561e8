#include "examples/cli/layer_times.h"

#include <algorithm>

#include "core/generator.h"
#include "core/launch.h"
#include "nn/capture.h"
#include "nn/compare/timer.h"

namespace gradus::cli {
namespace {

// Eight times the second-level cache of the largest current cards.
constexpr int64_t kColdBytes = 400 << 20;

Tensor draw(const CaseInput& input, DType dtype, Device device) {
  const TensorOptions options{
      .dtype = input.dtype(dtype),
      .device = device,
      .format = input.channels_last ? MemoryFormat::channels_last : MemoryFormat::contiguous};
  if (input.kind == CaseInput::Kind::label) return randint(0, input.classes, input.shape, options);
  if (input.positive) return rand(input.shape, options, nullptr, 0.5, 1.5);
  Tensor tensor = randn(input.shape, options, nullptr, input.mean, input.std);
  if (input.is_differentiable()) tensor.set_requires_grad(true);
  return tensor;
}

// One call's operands and results.
struct Operands {
  std::vector<Tensor> inputs;
  Tensor y, dy;

  void forget_gradients() {
    for (Tensor& input : inputs) input.set_grad({});
  }
};

Operands make_operands(const OpCase& op_case, DType dtype, Device device) {
  Operands operands;
  for (const CaseInput& input : op_case.inputs) {
    operands.inputs.push_back(draw(input, dtype, device));
  }
  return operands;
}

// What `call` launches.
Timing trace_call(const std::function<void()>& call) {
  const Trace trace;
  call();
  Timing timing;
  for (const TraceRecord& record : trace.records()) {
    if (!record.part) timing.bytes += record.bytes;
    timing.launches.push_back(record.name);
  }
  return timing;
}

void count_passes(double passes, const Tensor& x, Timing& timing) {
  if (passes > 0) timing.bytes = static_cast<int64_t>(passes * static_cast<double>(x.nbytes()));
}

}  // namespace

int64_t input_bytes(const OpCase& op_case, DType dtype) {
  int64_t total = 0;
  for (const CaseInput& input : op_case.inputs) {
    total += input.shape.numel() * size_of(input.dtype(dtype));
  }
  return total;
}

LayerTimes time_layer(const OpCase& op_case, DType dtype, Device device, bool cold, int repeats) {
  const int64_t copies =
      cold ? std::max<int64_t>(1, kColdBytes / (2 * input_bytes(op_case, dtype))) : 1;
  std::vector<Operands> all;
  for (int64_t i = 0; i < copies; ++i) all.push_back(make_operands(op_case, dtype, device));
  // A graph of few calls would show the time between graphs.
  const int64_t rounds = device.type == DeviceType::cuda ? std::max<int64_t>(1, 20 / copies) : 1;
  // Results are kept until each copy has had its turn: a buffer that is free is used again at once.
  const auto forward = [&] {
    for (int64_t round = 0; round < rounds; ++round) {
      for (Operands& one : all) one.y = op_case.forward(one.inputs);
      for (Operands& one : all) one.y = {};
    }
  };
  LayerTimes times;
  const Tensor& x = all[0].inputs[0];
  times.forward = trace_call([&] { all[0].y = op_case.forward(all[0].inputs); });
  count_passes(op_case.forward_passes, x, times.forward);
  if (repeats > 0) {
    times.forward.ms = time_calls(device, forward, rounds * copies, repeats);
  }
  if (!op_case.reference_backward) return times;
  for (Operands& one : all) {
    if (!one.y.defined()) one.y = op_case.forward(one.inputs);
    one.dy = randn(one.y.shape(), one.y.options());
  }
  const auto backward = [&] {
    for (int64_t round = 0; round < rounds; ++round) {
      for (Operands& one : all) one.y.backward(one.dy, true);
      for (Operands& one : all) one.forget_gradients();
    }
  };
  times.backward = trace_call([&] { all[0].y.backward(all[0].dy, true); });
  all[0].forget_gradients();
  count_passes(op_case.backward_passes, x, times.backward);
  if (repeats > 0) {
    times.backward.ms = time_calls(device, backward, rounds * copies, repeats);
  }
  return times;
}

double time_calls(Device device, const std::function<void()>& step, int64_t calls, int repeats) {
  nn::CapturedStep captured(device, step);
  const double seconds = time_step(
      device, [&] { captured.run(); }, repeats);
  return 1e3 * seconds / static_cast<double>(calls);
}

}  // namespace gradus::cli
