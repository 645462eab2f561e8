#include "examples/cli/layer_times.h"

#include <algorithm>

#include "core/generator.h"

namespace gradus::cli {
namespace {

// Several times the second-level cache of current cards.
constexpr int64_t kColdBytes = 400 << 20;
constexpr int64_t kLeastCopies = 4;

Tensor draw(const CaseInput& input, DType dtype, Device device) {
  const TensorOptions options{
      .dtype = input.dtype(dtype),
      .device = device,
      .format = input.channels_last ? MemoryFormat::channels_last : MemoryFormat::contiguous};
  if (input.kind == CaseInput::Kind::label) return randint(0, input.classes, input.shape, options);
  Tensor tensor = input.positive ? rand(input.shape, options, nullptr, 0.5, 1.5)
                                 : randn(input.shape, options, nullptr, input.mean, input.std);
  if (input.is_differentiable()) tensor.set_requires_grad(true);
  return tensor;
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

LayerTiming time_case(const OpCase& op_case, DType dtype, Device device, bool cold, int repeats,
                      double block_seconds) {
  const int64_t least = device.type == DeviceType::cuda ? kLeastCopies : 1;
  const int64_t copies = cold ? std::max(least, kColdBytes / (2 * input_bytes(op_case, dtype))) : 1;
  TimedLayer layer{
      .forward = [&](std::span<const Tensor> in) { return std::vector{op_case.forward(in)}; },
      .operands = {},
      .upstream =
          [&](std::span<const Tensor> outputs) {
            const Tensor& y = outputs[0];
            return std::vector{op_case.reference_backward ? randn(y.shape(), y.options())
                                                          : Tensor()};
          }};
  for (int64_t i = 0; i < copies; ++i) {
    std::vector<Tensor>& operands = layer.operands.emplace_back();
    for (const CaseInput& input : op_case.inputs) operands.push_back(draw(input, dtype, device));
  }
  const Tensor x = layer.operands[0][0];
  LayerTiming timing = time_layer(std::move(layer), device, repeats, block_seconds);
  count_passes(op_case.forward_passes, x, timing.forward);
  if (timing.backward) count_passes(op_case.backward_passes, x, *timing.backward);
  return timing;
}

}  // namespace gradus::cli
