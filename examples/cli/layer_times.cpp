#include "examples/cli/layer_times.h"

#include <algorithm>

#include "autograd/grad_mode.h"
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

std::vector<Tensor> draw_all(const OpCase& op_case, DType dtype, Device device) {
  std::vector<Tensor> operands;
  for (const CaseInput& input : op_case.inputs) operands.push_back(draw(input, dtype, device));
  return operands;
}

// Copies of the operands that are together larger than any cache, with results as large as they or,
// as those of a first convolution, many times larger.
int64_t cold_copies(const OpCase& op_case, DType dtype, Device device,
                    std::span<const Tensor> operands) {
  const NoGradGuard no_grad;
  const int64_t inputs = input_bytes(op_case, dtype), result = op_case.forward(operands).nbytes();
  const int64_t least = device.type == DeviceType::cuda ? kLeastCopies : 1;
  return std::max(least, kColdBytes / (inputs + std::max(inputs, result)));
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
  TimedLayer layer{
      .forward = [&](std::span<const Tensor> in) { return std::vector{op_case.forward(in)}; },
      .operands = {},
      .upstream =
          [&](std::span<const Tensor> outputs) {
            const Tensor& y = outputs[0];
            return std::vector{op_case.reference_backward ? randn(y.shape(), y.options())
                                                          : Tensor()};
          }};
  layer.operands.push_back(draw_all(op_case, dtype, device));
  // Without repeats, as for a profiler, the layer is called once, and only by time_layer().
  const bool turns = cold && repeats > 0;
  const int64_t copies = turns ? cold_copies(op_case, dtype, device, layer.operands[0]) : 1;
  while (std::ssize(layer.operands) < copies) {
    layer.operands.push_back(draw_all(op_case, dtype, device));
  }
  const Tensor x = layer.operands[0][0];
  LayerTiming timing = time_layer(std::move(layer), device, repeats, block_seconds);
  count_passes(op_case.forward_passes, x, timing.forward);
  if (timing.backward) count_passes(op_case.backward_passes, x, *timing.backward);
  return timing;
}

}  // namespace gradus::cli
