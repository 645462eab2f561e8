#include "nn/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/reference_optim.h"

namespace gradus::nn {
namespace {

void expect_rates(const Schedule& schedule, const std::vector<double>& want, size_t first = 0) {
  for (size_t t = first; t < want.size(); ++t) {
    EXPECT_NEAR(schedule(static_cast<int64_t>(t)), want[t], 1e-15) << "step " << t;
  }
}

// PyTorch's CosineAnnealingLR and StepLR.
TEST(Schedule, Golden) {
  for (const ref::Json& json : ref::golden_cases("schedules")) {
    const double lr = json.at("lr");
    const ref::Json& args = json.at("args");
    const auto want = json.at("rates").get<std::vector<double>>();
    const std::string name = json.at("name");
    if (name == "cosine") {
      expect_rates(schedules::cosine(lr, args.at("steps")), want);
    } else if (name == "step") {
      expect_rates(schedules::step(lr, args.at("every"), args.at("factor")), want);
    } else if (name == "one_cycle") {
      // The golden one starts at 0; ours is one step ahead of it on the way up, and the same down.
      const double up = args.at("up");
      const Schedule schedule = schedules::one_cycle(lr, args.at("steps"), up);
      const auto top = static_cast<size_t>(up * static_cast<double>(want.size()));
      for (size_t t = 0; t < top; ++t) {
        EXPECT_NEAR(schedule(static_cast<int64_t>(t)), want[t + 1], 1e-15) << "step " << t;
      }
      expect_rates(schedule, want, top);
    } else {
      FAIL() << name;
    }
  }
}

TEST(Schedule, OneCycle) {
  const Schedule schedule = schedules::one_cycle(0.1, 10);
  expect_rates(schedule, {0.05, 0.1, 0.1, 0.0875, 0.075, 0.0625, 0.05, 0.0375, 0.025, 0.0125});
  // The top is between two steps: the peak is not passed.
  expect_rates(schedules::one_cycle(0.14, 7), {0.1, 0.14, 0.14 * 5 / 5.6});
  EXPECT_EQ(schedule(10), 0.0);
  EXPECT_EQ(schedule(1000), 0.0);
  EXPECT_EQ(schedules::one_cycle(0.1, 10, 0.0)(0), 0.1);
  EXPECT_EQ(schedules::one_cycle(0.1, 10, 1.0)(9), 0.1);
}

TEST(Schedule, WarmUpBeforeAnotherSchedule) {
  expect_rates(schedules::warm_up(schedules::step(0.4, 2, 0.5), 4),
               {0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.2, 0.2, 0.1});
  expect_rates(schedules::warm_up(schedules::constant(0.25), 1), {0.25, 0.25, 0.25});
  EXPECT_ERROR(schedules::warm_up(schedules::constant(1), 0), ErrorCode::invalid_argument,
               "warm_up: warmup_steps must be positive, got 0");
  EXPECT_ERROR(schedules::warm_up({}, 3), ErrorCode::invalid_argument, "expected a schedule");
}

TEST(Schedule, CosineWithWarmUp) {
  const Schedule schedule = schedules::cosine(0.4, 8, 4);
  expect_rates(schedule, {0.1, 0.2, 0.3, 0.4, 0.4});
  EXPECT_NEAR(schedule(6), 0.2, 1e-15);
  EXPECT_NEAR(schedule(8), 0.0, 1e-15);
  EXPECT_NEAR(schedule(100), 0.0, 1e-15);
  for (int64_t t = 4; t < 8; ++t) {
    EXPECT_NEAR(schedule(t), ref::cosine(0.4, t - 4, 4), 1e-15);
  }
}

TEST(Schedule, Constant) {
  EXPECT_EQ(schedules::constant(0.3)(0), 0.3);
  EXPECT_EQ(schedules::constant(0.3)(1'000'000), 0.3);
}

TEST(Schedule, Errors) {
  constexpr auto invalid = ErrorCode::invalid_argument;
  EXPECT_ERROR(schedules::constant(-0.1), invalid, "learning rate", "-0.1");
  EXPECT_ERROR(schedules::constant(std::nan("")), invalid, "learning rate");
  EXPECT_ERROR(schedules::one_cycle(std::numeric_limits<double>::infinity(), 5), invalid, "inf");
  EXPECT_ERROR(schedules::one_cycle(0.1, 0), invalid, "total_steps", "0");
  EXPECT_ERROR(schedules::one_cycle(0.1, 5, 1.5), invalid, "up must be 0 to 1");
  EXPECT_ERROR(schedules::cosine(0.1, 5, 5), invalid, "warmup_steps must be 0 to 4, got 5");
  EXPECT_ERROR(schedules::step(0.1, 0), invalid, "every");
  EXPECT_ERROR(schedules::step(0.1, 1, -1.0), invalid, "factor");
}

}  // namespace
}  // namespace gradus::nn
