// Naive SGD step and learning-rate schedules.
#pragma once

#include "tests/support/reference_array.h"

namespace gradus::ref {

struct SgdOptions {
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;
};

// In PyTorch's order:
//   g = gradient + weight_decay * w
//   velocity = momentum * velocity + g, or g on the first step (velocity absent)
//   w -= lr * (nesterov ? g + momentum * velocity : velocity)
void sgd_step(Array& w, const Array& gradient, Array& velocity, double lr,
              const SgdOptions& options);

// Learning rate of step t = 0 .. steps - 1. One-cycle: linear from 0 to lr over the first
// up * steps, then linear to 0 at t = steps.
double one_cycle(double lr, int64_t t, int64_t steps, double up);
// lr/2 * (1 + cos(pi * t / steps)).
double cosine(double lr, int64_t t, int64_t steps);
// lr * factor^floor(t / every).
double step_decay(double lr, int64_t t, int64_t every, double factor);
double constant(double lr, int64_t t);

}  // namespace gradus::ref
