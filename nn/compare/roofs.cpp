#include "nn/compare/roofs.h"

#include <algorithm>

#include "autograd/ops/matmul.h"
#include "core/error.h"
#include "core/generator.h"
#include "core/trace.h"
#include "nn/capture.h"
#include "nn/compare/timer.h"

namespace gradus {
namespace {

constexpr double kBlockSeconds = 0.005;

// A step that cannot be recorded (it waits for the device, say) is timed as it is.
double time_captured(Device device, const std::function<void()>& step, int repeats) {
  // A graph of one call would show the time between graphs.
  const int rounds = device.type == DeviceType::cuda ? 20 : 1;
  try {
    nn::CapturedStep captured(device, [&] {
      for (int round = 0; round < rounds; ++round) step();
    });
    const double seconds = time_step(
        device, [&] { captured.run(); }, repeats, kBlockSeconds);
    return seconds / rounds;
  } catch (const Error&) {
    if (device == kCpu) throw;
  }
  return time_step(device, step, repeats, kBlockSeconds);
}

CompareTime time_direction(CompareDirection direction, const CompareDevice& roofs, DType dtype,
                           const std::function<void()>& step, int repeats) {
  CompareTime time{.device = roofs.device, .direction = direction};
  {
    const Trace trace;
    step();
    for (const TraceRecord& record : trace.records()) {
      if (record.part) continue;
      time.bytes += record.bytes;
      time.flops += record.flops;
    }
  }
  time.seconds = time_captured(roofs.device, step, repeats);
  double rate = 0;
  for (const auto& [of, tflop_per_s] : roofs.tflop_per_s) {
    if (of == dtype) rate = tflop_per_s;
  }
  const double copy = 1e-9 * static_cast<double>(time.bytes) / roofs.copy_gb_per_s;
  const double products = rate > 0 ? 1e-12 * static_cast<double>(time.flops) / rate : 0;
  time.roof = products > copy ? "products" : "copy";
  time.share = std::max(copy, products) / time.seconds;
  return time;
}

}  // namespace

double copy_bandwidth(Device device, int64_t bytes, int repeats) {
  const TensorOptions options{.device = device};
  const Tensor from = randn({bytes / 4}, options);
  Tensor to = Tensor::empty({bytes / 4}, options);
  const double seconds = time_step(
      device, [&] { to.copy_(from); }, repeats);
  return 2e-9 * static_cast<double>(from.nbytes()) / seconds;
}

double product_rate(Device device, DType dtype, int64_t n, int repeats) {
  const TensorOptions options{.dtype = dtype, .device = device};
  const Tensor a = randn({n, n}, options), b = randn({n, n}, options);
  const double seconds = time_step(
      device, [&] { matmul(a, b); }, repeats);
  const double size = static_cast<double>(n);
  return 2e-12 * size * size * size / seconds;
}

CompareDevice measure_roofs(Device device, const std::vector<DType>& dtypes) {
  const bool gpu = device.type == DeviceType::cuda;
  CompareDevice result{.device = device, .text = to_string(device)};
  result.copy_gb_per_s = copy_bandwidth(device, gpu ? 1 << 30 : 1 << 27, 5);
  for (const DType dtype : dtypes) {
    const int64_t n = !gpu ? 1024 : is_half(dtype) ? 8192 : 4096;
    const DType arithmetic = gpu ? dtype : acc_dtype(dtype);  // a CPU widens 16-bit values first
    result.tflop_per_s.emplace_back(dtype, product_rate(device, arithmetic, n, 3));
  }
  return result;
}

std::vector<CompareTime> time_layer(const ComparedLayer& layer, const CompareDevice& roofs,
                                    int repeats) {
  using enum CompareDirection;
  std::vector<Tensor> operands = operands_of(layer, roofs.device, false);
  std::vector<CompareTime> times;
  times.push_back(time_direction(
      forward, roofs, layer.dtype, [&] { layer.forward(operands); }, repeats));
  const LayerRun run = run_layer(layer, operands);
  if (std::ranges::none_of(run.upstream, &Tensor::defined)) return times;
  const std::vector<Tensor> outputs = layer.forward(operands);
  const auto forget = [&] {
    for (Tensor& x : operands) x.zero_grad();
  };
  const auto step = [&] {  // keeps nothing: what a recording allocates is the recording's
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (run.upstream[i].defined()) outputs[i].backward(run.upstream[i], true);
    }
    forget();
  };
  forget();
  times.push_back(time_direction(backward, roofs, layer.dtype, step, repeats));
  return times;
}

}  // namespace gradus
