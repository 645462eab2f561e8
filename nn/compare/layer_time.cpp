#include "nn/compare/layer_time.h"

#include <algorithm>

#include "core/trace.h"

namespace gradus {
namespace {

using Tensors = std::vector<Tensor>;

// What one call launches.
Timing trace_call(const std::function<void()>& call) {
  const Trace trace;
  call();
  Timing timing;
  for (const TraceRecord& record : trace.records()) {
    if (!record.part) timing.bytes += record.bytes, timing.flops += record.flops;
    timing.launches.push_back(record.name);
  }
  return timing;
}

void backward(const Tensors& outputs, const Tensors& upstream) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (upstream[i].defined()) outputs[i].backward(upstream[i], true);
  }
}

void forget_gradients(Tensors& operands) {
  for (Tensor& x : operands) x.zero_grad();
}

}  // namespace

LayerTiming time_layer(TimedLayer layer, Device device, int repeats, double block_seconds) {
  if (repeats == 0) layer.operands.resize(1);
  const int64_t copies = std::ssize(layer.operands);
  // A graph of few calls would show the time between graphs.
  const int64_t rounds = device.type == DeviceType::cuda ? std::max<int64_t>(1, 20 / copies) : 1;
  const auto time = [&](Timing& timing, const std::function<void()>& turn_of_all) {
    if (repeats == 0) return;
    const auto step = [&] {
      for (int64_t round = 0; round < rounds; ++round) turn_of_all();
    };
    timing.seconds = time_captured(device, step, rounds * copies, repeats, block_seconds);
  };
  LayerTiming result;
  std::vector<Tensors> outputs(1), upstream;
  result.forward = trace_call([&] { outputs[0] = layer.forward(layer.operands[0]); });
  time(result.forward, [&] {
    std::vector<Tensors> kept;
    for (const Tensors& operands : layer.operands) kept.push_back(layer.forward(operands));
  });

  for (int64_t i = 1; i < copies; ++i) outputs.push_back(layer.forward(layer.operands[i]));
  for (const Tensors& of_call : outputs) upstream.push_back(layer.upstream(of_call));
  if (std::ranges::none_of(upstream[0], &Tensor::defined)) return result;
  result.backward = trace_call([&] { backward(outputs[0], upstream[0]); });
  forget_gradients(layer.operands[0]);
  time(*result.backward, [&] {  // keeps nothing: what a recording allocates is the recording's
    for (size_t i = 0; i < outputs.size(); ++i) backward(outputs[i], upstream[i]);
    for (Tensors& operands : layer.operands) forget_gradients(operands);
  });
  return result;
}

}  // namespace gradus
