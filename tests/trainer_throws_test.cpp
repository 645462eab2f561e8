// What an evaluation, a step or a stop leaves behind, above all when a layer throws in the middle.
#include <gtest/gtest.h>

#include <utility>

#include "autograd/ops/arithmetic.h"
#include "tests/support/expect_error.h"
#include "tests/support/trainer_session.h"

namespace gradus::nn {
namespace {

using test::Session;
using test::toy_set;
using TrainerThrows = test::EachDevice;

constexpr auto kInvalid = ErrorCode::invalid_argument;

// Throws in its next forward, if armed.
struct Trap final : Module {
  explicit Trap(std::shared_ptr<bool> armed) : armed(std::move(armed)) {}
  std::string_view kind() const override { return "Trap"; }
  Tensor forward(const Tensor& x) override {
    check(!std::exchange(*armed, false), "trap", "sprung");
    return x;
  }
  std::shared_ptr<bool> armed;
};

TEST_P(TrainerThrows, EvaluationRestoresTheModeOfEachPart) {
  Session run(GetParam());
  const auto armed = std::make_shared<bool>(false);
  run.net.add(Trap(armed));
  run.net[1].eval();  // a frozen norm
  DataLoader held_out(toy_set(16, 2), {.batch_size = 8, .device = GetParam()});
  const auto modes = [&] {
    std::vector<bool> all;
    for (const Module::Entry& entry : run.net.modules()) all.push_back(entry.module->training());
    return all;
  };
  const std::vector<bool> before = modes();
  run.start().evaluate(held_out);
  EXPECT_EQ(modes(), before);
  held_out.next();
  const LoaderPosition position = held_out.position();
  *armed = true;
  EXPECT_ERROR(run.trainer->evaluate(held_out), kInvalid, "trap: sprung");
  EXPECT_EQ(modes(), before);
  EXPECT_EQ(held_out.position(), position);
}

TEST_P(TrainerThrows, AStepThatThrowsIsTakenAgain) {
  std::vector<std::string> hashes;
  for (const bool fails : {false, true}) {
    Session run(GetParam());
    const auto armed = std::make_shared<bool>(fails);
    Sequential net(Trap(armed), std::move(run.net));
    run.net = std::move(net);
    run.options.epochs = 1;
    run.start();
    if (fails) {
      EXPECT_ERROR(run.trainer->step(), kInvalid, "trap: sprung");
    }
    EXPECT_EQ(run.trainer->run(), TrainResult::finished);
    hashes.push_back(run.hash());
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

// Throws in its next backward, if armed.
struct LateTrap final : Module {
  explicit LateTrap(std::shared_ptr<bool> armed) : armed(std::move(armed)) {}
  std::string_view kind() const override { return "LateTrap"; }
  Tensor forward(const Tensor& x) override {
    const Tensor y = affine(x, 1.0);
    if (!y.requires_grad()) return y;
    y.register_hook([armed = armed](const Tensor&) {
      check(!std::exchange(*armed, false), "trap", "sprung");
      return Tensor();
    });
    return y;
  }
  std::shared_ptr<bool> armed;
};

TEST_P(TrainerThrows, ABatchThatIsTakenAgainCountsOnce) {
  Session run(GetParam());
  run.net.add(LateTrap(std::make_shared<bool>(true)));
  run.start();
  EXPECT_ERROR(run.trainer->step(), kInvalid, "trap: sprung");
  run.trainer->step();
  EXPECT_EQ(run.trainer->train_metrics().samples, 8);
}

// The parameters stay those that were reported, and the last epoch is finished all the same.
TEST_P(TrainerThrows, StopBetweenEpochs) {
  for (const int64_t last : {0, 1}) {
    Session run(GetParam());
    std::atomic<bool> stop{false};
    std::string reported;
    run.options.stop = &stop;
    run.options.on_epoch = [&](const EpochReport& report) {
      reported = report.parameter_hash;
      stop = report.epoch == last;
    };
    EXPECT_EQ(run.start().run(), last == 0 ? TrainResult::interrupted : TrainResult::finished);
    EXPECT_EQ(run.hash(), reported);
    EXPECT_EQ(run.optimizer->steps(), 8 * (last + 1));
  }
}

TEST_P(TrainerThrows, AnOptimizerOfOtherTensorsIsRefused) {
  Session run(GetParam());
  run.net.to(DType::f64);  // replaces those that the optimizer has
  EXPECT_ERROR(run.start(), kInvalid, "trainer: the optimizer's parameter 0.weight, f32[4,1,3,3]",
               "is none of the model's");
  run.optimizer = std::make_unique<SGD>(std::vector{run.net.parameters()[1]}, SGDOptions{});
  EXPECT_NO_THROW(run.start());  // some of them
}

GRADUS_ON_EACH_DEVICE(TrainerThrows);

}  // namespace
}  // namespace gradus::nn
