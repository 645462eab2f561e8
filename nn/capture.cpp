#include "nn/capture.h"

#include <utility>

#include "core/launch.h"

namespace gradus::nn {

CapturedStep::CapturedStep(Device device, std::function<void()> step)
    : device_(device), step_(std::move(step)) {}

void CapturedStep::run() {
  if (calls_ < kWarmUp) {
    ++calls_;
    return step_();
  }
  if (!captured()) {
    replay_ = with_backend(device_, [&](auto& backend) { return record_step(backend, step_); });
  }
  captured() ? replay_() : step_();
}

// A replay may be running still.
void CapturedStep::forget() {
  if (captured()) with_backend(device_, [](auto& backend) { synchronize(backend); });
  replay_ = nullptr;
  calls_ = 0;
}

}  // namespace gradus::nn
