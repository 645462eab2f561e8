#include "tests/support/reference_optim.h"

#include <cmath>
#include <numbers>

namespace gradus::ref {

void sgd_step(Array& w, const Array& gradient, Array& velocity, double lr,
              const SgdOptions& options) {
  require(w.shape == gradient.shape, "sgd: the gradient must have the shape of w");
  const bool first = velocity.empty();
  if (first) velocity = zeros(w.shape);
  for (int64_t i = 0; i < w.numel(); ++i) {
    const Real g = gradient[i] + Real(options.weight_decay) * w[i];
    const Real v = first ? g : Real(options.momentum) * velocity[i] + g;
    const Real step = options.nesterov ? g + Real(options.momentum) * v : v;
    velocity[i] = static_cast<double>(v);
    w[i] = static_cast<double>(w[i] - Real(lr) * step);
  }
}

double one_cycle(double lr, int64_t t, int64_t steps, double up) {
  const Real top = Real(up) * steps;
  const Real share = t < top ? t / top : (steps - t) / (steps - top);
  return static_cast<double>(lr * share);
}

double cosine(double lr, int64_t t, int64_t steps) {
  const Real angle = std::numbers::pi_v<Real> * t / steps;
  return static_cast<double>(lr * (1 + std::cos(angle)) / 2);
}

double step_decay(double lr, int64_t t, int64_t every, double factor) {
  Real rate = lr;
  for (int64_t done = every; done <= t; done += every) rate *= factor;
  return static_cast<double>(rate);
}

double constant(double lr, int64_t) { return lr; }

}  // namespace gradus::ref
