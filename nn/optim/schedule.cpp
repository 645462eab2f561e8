#include "nn/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace gradus::nn::schedules {
namespace {

void check_rate(double lr, std::string_view name) {
  check(std::isfinite(lr) && lr >= 0, name, "expected a learning rate of 0 or more, got ", lr);
}

void check_count(int64_t count, std::string_view what, std::string_view name) {
  check(count > 0, name, what, " must be positive, got ", count);
}

}  // namespace

Schedule constant(double lr) {
  check_rate(lr, "constant");
  return [=](int64_t) { return lr; };
}

Schedule one_cycle(double peak, int64_t total_steps, double up) {
  check_rate(peak, "one_cycle");
  check_count(total_steps, "total_steps", "one_cycle");
  check(up >= 0 && up <= 1, "one_cycle", "up must be 0 to 1, got ", up);
  const double total = static_cast<double>(total_steps);
  const double top = up * total;
  return [=](int64_t step) {
    const double t = static_cast<double>(step);
    if (t < top) return peak * std::min(1.0, (t + 1) / top);
    return t < total ? peak * (1 - (t - top) / (total - top)) : 0.0;
  };
}

Schedule cosine(double lr, int64_t total_steps, int64_t warmup_steps) {
  check_rate(lr, "cosine");
  check_count(total_steps, "total_steps", "cosine");
  check(warmup_steps >= 0 && warmup_steps < total_steps, "cosine", "warmup_steps must be 0 to ",
        total_steps - 1, ", got ", warmup_steps);
  return [=](int64_t step) {
    if (step < warmup_steps) {
      return lr * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
    }
    const double share = static_cast<double>(std::min(step, total_steps) - warmup_steps) /
                         static_cast<double>(total_steps - warmup_steps);
    return lr / 2 * (1 + std::cos(std::numbers::pi * share));
  };
}

Schedule step(double lr, int64_t every, double factor) {
  check_rate(lr, "step");
  check_count(every, "every", "step");
  check(std::isfinite(factor) && factor >= 0, "step", "factor must be 0 or more, got ", factor);
  return [=](int64_t t) { return lr * std::pow(factor, static_cast<double>(t / every)); };
}

Schedule warm_up(Schedule after, int64_t warmup_steps) {
  check(static_cast<bool>(after), "warm_up", "expected a schedule to go on with");
  check_count(warmup_steps, "warmup_steps", "warm_up");
  return [=](int64_t t) {
    if (t >= warmup_steps) return after(t - warmup_steps);
    return after(0) * static_cast<double>(t + 1) / static_cast<double>(warmup_steps);
  };
}

}  // namespace gradus::nn::schedules
