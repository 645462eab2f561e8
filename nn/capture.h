// A step that runs many times with the same shapes, recorded once where the device can replay it.
//
//   CapturedStep step(kCuda, [&] { loss.copy_(train_step(batch).detach()); });
//   for (int64_t i = 0; i < steps; ++i) step.run();
//
// On CUDA the first calls run as written, to warm up caches and library handles; the next one is
// recorded into a graph and from then on replayed without calling the function. So everything that
// changes between steps (learning rate, random counter, position in the data) must live in device
// memory, tensors must keep their shapes, and the step must not wait for the device or copy from
// the host. On the CPU the function is called every time.
#pragma once

#include <functional>

#include "core/device.h"

namespace gradus::nn {

class CapturedStep {
 public:
  static constexpr int kWarmUp = 2;  // calls before the recording

  // `step` launches on the calling thread's context of `device`; run() belongs to that thread.
  CapturedStep(Device device, std::function<void()> step);

  // Runs the step once; on CUDA without waiting for it. When the recording throws, the next call
  // tries again.
  void run();
  // Where the host would launch something else now: the next call is the first again.
  void forget();
  // Whether run() replays a recording.
  bool captured() const { return replay_ != nullptr; }

 private:
  Device device_;
  std::function<void()> step_;
  std::function<void()> replay_;
  int calls_ = 0;  // of the warm-up
};

}  // namespace gradus::nn
