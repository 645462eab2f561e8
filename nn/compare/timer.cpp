#include "nn/compare/timer.h"

#include <algorithm>
#include <chrono>

#include "core/error.h"
#include "core/launch.h"
#include "nn/capture.h"

namespace gradus {

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double time_step(Device device, const std::function<void()>& step, int repeats,
                 double block_seconds) {
  using Clock = std::chrono::steady_clock;
  const auto block = [&](int64_t steps) {
    const Clock::time_point start = Clock::now();
    for (int64_t i = 0; i < steps; ++i) step();
    with_backend(device, [](auto& backend) { synchronize(backend); });
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  block(nn::CapturedStep::kWarmUp + 1);  // ends with the recording of a step that is captured
  const int64_t steps = std::max<int64_t>(1, static_cast<int64_t>(block_seconds / block(1)));
  std::vector<double> seconds(static_cast<size_t>(repeats));
  for (double& value : seconds) value = block(steps) / static_cast<double>(steps);
  return median(seconds);
}

double time_captured(Device device, const std::function<void()>& step, int64_t calls, int repeats,
                     double block_seconds) {
  const auto time = [&](const std::function<void()>& one) {
    return time_step(device, one, repeats, block_seconds) / static_cast<double>(calls);
  };
  if (device.type == DeviceType::cuda) {
    try {
      nn::CapturedStep captured(device, step);
      return time([&] { captured.run(); });
    } catch (const Error&) {  // by what is timed below, if it is of another kind
    }
  }
  return time(step);
}

}  // namespace gradus
