// Learning-rate schedules: functions of the step number, counted from 0. An optimizer evaluates one
// once, into a table on its device.
//
//   optimizer.set_schedule(nn::schedules::one_cycle(0.1, steps), steps);
#pragma once

#include <cstdint>
#include <functional>

namespace gradus::nn {

using Schedule = std::function<double(int64_t step)>;

// Each throws invalid_argument for a rate that is negative or not finite and for counts that are
// not positive.
namespace schedules {

Schedule constant(double lr);

// Linear up to `peak` over the first `up` of all steps, then linear down to 0 just after the last:
//   peak·min(1, (t + 1) / (up·total))              while t < up·total
//   peak·(1 - (t - up·total) / (total - up·total))  afterwards, 0 from t = total on
Schedule one_cycle(double peak, int64_t total_steps, double up = 0.2);

// A linear warm-up lr·(t + 1) / warmup_steps, then half a cosine down to 0 at t = total_steps:
//   lr/2·(1 + cos(pi·(t - warmup) / (total - warmup)))
// Without warm-up:
// https://pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.CosineAnnealingLR.html
Schedule cosine(double lr, int64_t total_steps, int64_t warmup_steps = 0);

// lr·factor^floor(t / every):
// https://pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.StepLR.html
Schedule step(double lr, int64_t every, double factor = 0.1);

// Linear up to what `after` begins with, lr(0)·(t + 1) / warmup_steps, then `after` from its own
// step 0 on. Its total is that much shorter:
//   warm_up(step(0.1, 100), 20)
Schedule warm_up(Schedule after, int64_t warmup_steps);

}  // namespace schedules
}  // namespace gradus::nn
