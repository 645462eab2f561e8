#include "nn/compare/roofs.h"

#include <algorithm>

#include "autograd/ops/matmul.h"
#include "core/generator.h"
#include "nn/compare/timer.h"

namespace gradus {
namespace {

CompareTime set_against(const CompareDevice& roofs, DType dtype, CompareDirection direction,
                        const Timing& timing) {
  CompareTime time{.device = roofs.device, .direction = direction, .seconds = timing.seconds};
  time.bytes = timing.bytes, time.flops = timing.flops;
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

std::vector<CompareTime> against_roofs(const LayerTiming& timing, DType dtype,
                                       const CompareDevice& roofs) {
  std::vector<CompareTime> times{
      set_against(roofs, dtype, CompareDirection::forward, timing.forward)};
  if (timing.backward)
    times.push_back(set_against(roofs, dtype, CompareDirection::backward, *timing.backward));
  return times;
}

std::vector<CompareTime> times_of(const ComparedLayer& layer, const CompareDevice& roofs,
                                  int repeats) {
  const TimedLayer timed{
      .forward = layer.forward,
      .operands = {operands_of(layer, roofs.device, false)},
      .upstream = [&](std::span<const Tensor> outputs) { return upstream_of(layer, outputs); }};
  return against_roofs(time_layer(timed, roofs.device, repeats, kRoofBlockSeconds), layer.dtype,
                       roofs);
}

}  // namespace gradus
