// Every norm and every optimizer that `gradus train` offers learns, and a run that was broken off
// goes on bit for bit.
#include <cmath>

#include "nn/models.h"
#include "nn/optim/muon.h"
#include "nn/optim/sgd.h"
#include "nn/trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/optim.h"
#include "tests/support/toy.h"

namespace gradus::nn {
namespace {

struct Choice {
  std::string norm = "batch";
  std::string activation = "relu";
  std::string optimizer = "sgd";
  double clip_norm = 0, clip_value = 0;
};

std::unique_ptr<Optimizer> make_optimizer(const std::string& name, Module& net) {
  if (name == "adam") {
    return std::make_unique<Adam>(net.named_parameters(), AdamOptions{.lr = 2e-3});
  }
  if (name == "adamw") {
    return std::make_unique<AdamW>(net.named_parameters(), AdamWOptions{.lr = 2e-3});
  }
  if (name == "muon") {
    return std::make_unique<Muon>(split_for_muon(net),
                                  MuonOptions{.lr = 0.02, .weight_decay = 0.01},
                                  AdamWOptions{.lr = 2e-3});
  }
  return std::make_unique<SGD>(net.named_parameters(),
                               SGDOptions{.lr = 0.02, .momentum = 0.9, .nesterov = true});
}

Sequential make_net(const Choice& choice, Device device) {
  manual_seed(1);
  Sequential net = make_model("small_cnn", {.channels = 1,
                                            .height = 8,
                                            .width = 8,
                                            .classes = 4,
                                            .norm = choice.norm,
                                            .activation = choice.activation});
  net.to(device);
  return net;
}

// A net, its data and its trainer; 8 steps of 8 images make an epoch.
struct Training {
  Training(const Choice& choice, Device device)
      : net(make_net(choice, device)),
        loader(test::toy_set(64), {.batch_size = 8, .device = device}),
        optimizer(make_optimizer(choice.optimizer, net)),
        trainer(net, loader, *optimizer,
                {.epochs = 6, .clip_value = choice.clip_value, .clip_norm = choice.clip_norm}) {}

  double loss_of_epoch() {
    for (int i = 0; i < 8; ++i) trainer.step();
    trainer.synchronize();
    return trainer.train_metrics().loss;
  }

  Sequential net;
  DataLoader loader;
  std::unique_ptr<Optimizer> optimizer;
  Trainer trainer;
};

class TrainChoicesTest : public test::EachDevice {};
GRADUS_ON_EACH_DEVICE(TrainChoicesTest);

void expect_learns(const Choice& choice, Device device) {
  SCOPED_TRACE(choice.norm + " " + choice.activation + " " + choice.optimizer);
  Training run(choice, device);
  const double first = run.loss_of_epoch();
  double last = first;
  for (int epoch = 1; epoch < 5; ++epoch) last = run.loss_of_epoch();
  EXPECT_LT(last, 0.7 * first) << "from " << first;
}

TEST_P(TrainChoicesTest, EveryNormLearns) {
  for (const std::string& norm : norm_names()) expect_learns({.norm = norm}, GetParam());
}

TEST_P(TrainChoicesTest, EveryOptimizerLearns) {
  for (const char* name : {"sgd", "adam", "adamw", "muon"}) {
    expect_learns({.optimizer = name}, GetParam());
  }
}

TEST_P(TrainChoicesTest, ClippedGradientsLearn) {
  expect_learns({.clip_norm = 1.0}, GetParam());
  expect_learns({.optimizer = "adam", .clip_norm = 0.5, .clip_value = 0.1}, GetParam());
}

// A tight limit is felt: plain descent of one step moves all parameters by no more than lr·limit.
TEST_P(TrainChoicesTest, ClippingLimitsTheStep) {
  Training run({.norm = "none", .clip_norm = 1e-3}, GetParam());
  std::vector<std::vector<double>> before;
  for (const Tensor& p : run.net.parameters()) before.push_back(p.to_vector<double>());
  run.trainer.step();
  double squares = 0;
  const std::vector<Tensor> after = run.net.parameters();
  for (size_t i = 0; i < after.size(); ++i) {
    const std::vector<double> values = after[i].to_vector<double>();
    for (size_t j = 0; j < values.size(); ++j) {
      squares += (values[j] - before[i][j]) * (values[j] - before[i][j]);
    }
  }
  const double moved = std::sqrt(squares);  // lr·(1 + momentum)·1e-3
  EXPECT_GT(moved, 0.02 * 1.8e-3);
  EXPECT_LT(moved, 0.02 * 2.0e-3);
}

// Broken off within the second epoch; on CUDA after the step has been captured.
TEST_P(TrainChoicesTest, ResumedIsUnbrokenBitForBit) {
  for (const char* name : {"sgd", "adam", "adamw", "muon"}) {
    const Choice choice{.norm = "layer", .optimizer = name, .clip_norm = 1.0};
    Training whole(choice, GetParam());
    for (int i = 0; i < 20; ++i) whole.trainer.step();
    Training first(choice, GetParam());
    for (int i = 0; i < 11; ++i) first.trainer.step();
    Training second(choice, GetParam());
    for (int i = 0; i < 3; ++i) second.trainer.step();  // to be forgotten
    second.trainer.restore(first.trainer.state());
    for (int i = 11; i < 20; ++i) second.trainer.step();
    EXPECT_EQ(parameter_hash(second.net), parameter_hash(whole.net)) << name;
  }
}

// What no parameter tells apart.
TEST(TrainChoices, ResumeComparesLayersWithoutParameters) {
  DataLoader loader(test::toy_set(64), {.batch_size = 8});
  const auto state_of = [&](Sequential net) {
    const auto optimizer = make_optimizer("sgd", net);
    return Trainer(net, loader, *optimizer, {}).state();
  };
  const TrainerState state = state_of(Sequential(Conv2d(1, 4, 8), ReLU(), Flatten()));
  Sequential other(Conv2d(1, 4, 8), Dropout(0.5), Flatten());
  const auto optimizer = make_optimizer("sgd", other);
  EXPECT_ERROR(Trainer(other, loader, *optimizer, {}).restore(state), ErrorCode::invalid_argument,
               "resume: layer 1 is Dropout in this run and ReLU in the file");
}

TEST(TrainChoices, ResumeComparesNormActivationOptimizerAndClipping) {
  const auto invalid = ErrorCode::invalid_argument;
  Training run({}, kCpu);
  const TrainerState state = run.trainer.state();
  const auto restore = [&](const Choice& choice) { Training(choice, kCpu).trainer.restore(state); };
  restore({});
  EXPECT_ERROR(restore({.norm = "layer"}), invalid, "resume: ", "model.1.");
  EXPECT_ERROR(restore({.optimizer = "adam"}), invalid, "optimizer", "adam: beta1",
               "sgd: momentum");
  EXPECT_ERROR(restore({.clip_norm = 1}), invalid,
               "resume: clip_norm is 1 in this run and 0 in the file");
}

TEST(TrainChoices, ClippingLimitsAreChecked) {
  EXPECT_ERROR(Training({.clip_norm = -1}, kCpu), ErrorCode::invalid_argument,
               "trainer: clip_norm must be 0 or more, got -1");
  EXPECT_ERROR(Training({.clip_value = std::numeric_limits<double>::infinity()}, kCpu),
               ErrorCode::invalid_argument, "clip_value", "inf");
}

}  // namespace
}  // namespace gradus::nn
