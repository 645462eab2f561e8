// What the trainer does when a value is not finite: it stops, names step and layer, and keeps
// nothing of it.
#include <cmath>

#include "autograd/grad_mode.h"
#include "nn/finite_check.h"
#include "nn/forward_observer.h"
#include "tests/support/expect_error.h"
#include "tests/support/trainer_session.h"

namespace gradus::nn {
namespace {

using test::Session;
using test::toy_net;
using test::toy_set;
using TrainerFinite = test::EachDevice;

constexpr auto kInvalid = ErrorCode::invalid_argument;

// Its sixth loss is not finite.
Session diverging_session(Device device) {
  Session run(device);
  run.net = Sequential(Conv2d(1, 2, 3), ReLU(), Flatten(), Linear(72, 4));
  run.net.to(device);
  run.optimizer = std::make_unique<SGD>(run.net.named_parameters(), SGDOptions{});
  run.optimizer->set_schedule([](int64_t t) { return t == 4 ? 1e25 : 0.01; }, 16);
  return run;
}

void expect_finite_parameters(Session& run) {
  for (const Tensor& p : run.net.parameters()) {
    for (const double value : p.to_vector<double>()) EXPECT_TRUE(std::isfinite(value));
  }
}

TEST_P(TrainerFinite, LossThatIsNotFiniteNamesStepAndLayer) {
  Session run = diverging_session(GetParam());
  const TrainerState fresh = run.start().state();
  EXPECT_ERROR(run.trainer->run(), kInvalid, "the loss of epoch 1, step 6 is not finite",
               "the output of 3 (Linear)");
  expect_finite_parameters(run);
  EXPECT_ERROR(run.trainer->synchronize(), kInvalid, "step 6");
  // A state from before is whole again.
  const std::string failed = run.hash();
  run.trainer->restore(fresh);
  run.trainer->step();
  run.trainer->synchronize();
  EXPECT_NE(run.hash(), failed);
  EXPECT_EQ(run.optimizer->steps(), 1);
}

TEST_P(TrainerFinite, ATrainerThatReplacesAnotherKeepsNothingOfTheFailedStep) {
  Session run = diverging_session(GetParam());
  run.start();
  run.start();  // the first one ends after the second has begun
  EXPECT_ERROR(run.trainer->run(), kInvalid, "step 6 is not finite");
  expect_finite_parameters(run);
}

TEST_P(TrainerFinite, AnotherTrainerInBetweenLeavesTheFirstItsFailedStep) {
  Session run = diverging_session(GetParam());
  DataLoader held_out(toy_set(16, 2), {.batch_size = 8, .device = GetParam()});
  run.options.progress_every = 1;
  run.options.on_progress = [&](const Progress&) {
    Trainer(run.net, *run.loader, *run.optimizer, {}).evaluate(held_out);
  };
  EXPECT_ERROR(run.start().run(), kInvalid, "step 6 is not finite");
  expect_finite_parameters(run);
}

TEST_P(TrainerFinite, TheOptimizerStepsAgainWithoutTheTrainerThatFailed) {
  Session run = diverging_session(GetParam());
  EXPECT_ERROR(run.start().run(), kInvalid, "step 6 is not finite");
  run.trainer.reset();
  const std::string failed = run.hash();
  run.optimizer->step();
  EXPECT_NE(run.hash(), failed);
}

TEST_P(TrainerFinite, AnInfiniteLossIsNotFinite) {
  Session run(GetParam());
  {
    const NoGradGuard no_grad;
    run.net.parameters().back().copy_(
        Tensor::from_vector<float>({3e38f, -3e38f, -3e38f, -3e38f}, {4}));
  }
  EXPECT_ERROR(run.start().run(), kInvalid,
               "the loss of epoch 1, step 1 is not finite; the first value that is not: the loss");
}

TEST_P(TrainerFinite, LossOfASmallerLastBatchNamesItsStep) {
  Session run = diverging_session(GetParam());
  run.loader = std::make_unique<DataLoader>(
      toy_set(20), LoaderOptions{.batch_size = 8, .drop_last = false, .device = GetParam()});
  run.optimizer->set_schedule([](int64_t t) { return t == 1 ? 1e25 : 0.01; }, 6);
  EXPECT_ERROR(run.start().run(), kInvalid, "the loss of epoch 1, step 3 is not finite",
               "the output of 3 (Linear)");
}

TEST_P(TrainerFinite, AnInputThatIsNotFiniteIsNamed) {
  Session run(GetParam());
  const Tensor x = Tensor::full({2, 1, 8, 8}, NAN, {.device = GetParam()});
  EXPECT_EQ(first_non_finite(run.net, x), "the input");
}

// The step that breaks the parameters is the last: no later loss shows it.
TEST_P(TrainerFinite, LastStepThatDivergesIsNotReported) {
  for (const int64_t last : {7, 15}) {
    Session run(GetParam());
    run.optimizer->set_schedule([=](int64_t t) { return t == last ? 1e39 : 0.01; }, 16);
    int64_t reports = 0;
    run.options.on_epoch = [&](const EpochReport&) { ++reports; };
    EXPECT_ERROR(run.start().run(), kInvalid, "trainer: parameter 0.weight is not finite after",
                 last == 7 ? "epoch 1, step 8" : "epoch 2, step 8");
    EXPECT_EQ(reports, last / 8);
  }
}

TEST_P(TrainerFinite, InterruptedStepThatDivergesIsNotKept) {
  Session run(GetParam());
  const std::atomic<bool> stop{true};
  run.options.stop = &stop;
  run.optimizer->set_schedule([](int64_t) { return 1e39; }, 16);
  EXPECT_ERROR(run.start().run(), kInvalid, "is not finite after epoch 1, step 1");
}

TEST_P(TrainerFinite, BufferThatIsNotFiniteIsNamed) {
  Session run(GetParam());
  {
    const NoGradGuard no_grad;
    for (const NamedTensor& entry : run.net.state_dict()) {
      if (entry.name == "1.running_var") Tensor(entry.tensor).fill_(HUGE_VAL);
    }
  }
  EXPECT_ERROR(run.start().run(), kInvalid, "buffer 1.running_var is not finite after epoch 1");
}

TEST_P(TrainerFinite, TestLossThatIsNotFiniteNamesTheLayer) {
  Session run(GetParam());
  ImageSet bright = toy_set(40, 2);
  bright.std = {2e-39f};  // pixels up to 2.5e38, whose sums overflow
  DataLoader held_out(bright, {.batch_size = 8, .device = GetParam()});
  {
    const NoGradGuard no_grad;
    run.net.parameters()[0].fill_(1.0);
  }
  run.optimizer->set_lr(0);
  run.options.on_epoch = [](const EpochReport&) { FAIL() << "must not be reported"; };
  EXPECT_ERROR(run.start().run(&held_out), kInvalid, "the test loss after epoch 1, step 8",
               "the output of 0 (Conv2d)");
  EXPECT_EQ(held_out.position(), LoaderPosition{});
  EXPECT_EQ(first_non_finite_state(run.net), "");
}

TEST_P(TrainerFinite, ParameterThatIsNotFiniteIsNamed) {
  Session run(GetParam());
  {
    const NoGradGuard no_grad;
    run.net.parameters()[3].fill_(std::nan(""));
  }
  EXPECT_ERROR(run.start().run(), kInvalid, "the loss of epoch 1, step 1 is not finite",
               "parameter 6.weight");
}

GRADUS_ON_EACH_DEVICE(TrainerFinite);

}  // namespace
}  // namespace gradus::nn
