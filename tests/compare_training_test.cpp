// Lock-step training: stays in step, and says where it parts.
#include <gtest/gtest.h>

#include "core/generator.h"
#include "nn/activation.h"
#include "nn/compare/lock_step.h"
#include "nn/conv2d.h"
#include "nn/dropout.h"
#include "nn/flatten.h"
#include "nn/group_norm.h"
#include "nn/linear.h"
#include "nn/models.h"
#include "nn/optim/adam.h"
#include "nn/optim/muon.h"
#include "nn/optim/sgd.h"
#include "tests/support/compared_modules.h"
#include "tests/support/expect_error.h"
#include "tests/support/gpu.h"

namespace gradus {
namespace {

using MakeModel = std::function<std::unique_ptr<nn::Module>()>;
using MakeOptimizer = std::function<std::unique_ptr<nn::Optimizer>(nn::Module&)>;

// Batches of 4 images of 8 x 8 in 3 classes, each another one.
std::function<nn::Batch()> batches() {
  auto generator = std::make_shared<Generator>(kCpu, 5);
  return [generator] {
    const Tensor x = randn({4, 1, 8, 8}, {}, generator.get());
    return nn::Batch{x, randint(0, 3, {4}, {.dtype = DType::i64}, generator.get())};
  };
}

template <class... Middle>
std::unique_ptr<nn::Module> small_net(Middle&&... middle) {
  manual_seed(2);
  return std::make_unique<nn::Sequential>(nn::Conv2d(1, 4, 3), nn::GroupNorm(2, 4), nn::ReLU(),
                                          std::forward<Middle>(middle)..., nn::Flatten(),
                                          nn::Linear(4 * 6 * 6, 3));
}

MakeOptimizer sgd() {
  return [](nn::Module& net) {
    return std::make_unique<nn::SGD>(net.named_parameters(),
                                     nn::SGDOptions{.lr = 0.05, .momentum = 0.9});
  };
}

void stays_in_step(const MakeOptimizer& make, std::string_view name) {
  const CompareReport report =
      compare_training([] { return small_net(nn::Dropout(0.25)); }, make, batches(), {.steps = 3});
  ASSERT_TRUE(report.train);
  EXPECT_FALSE(report.train->parted)
      << name << ": " << report.train->parted->path << " " << report.train->parted->value << " "
      << report.train->parted->error.error;
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.train->steps_done, 3);
  EXPECT_EQ(report.train->optimizer, name);
  EXPECT_EQ(report.train->batch_size, 4);
  EXPECT_EQ(report.train->drift.size(), 3u);
  EXPECT_EQ(report.rows.back().path, "optimizer");
}

TEST(CompareTraining, StaysInStepWithEachOptimizer) {
  stays_in_step(sgd(), "sgd");
  stays_in_step(
      [](nn::Module& net) {
        return std::make_unique<nn::AdamW>(net.named_parameters(), nn::AdamWOptions{.lr = 0.01});
      },
      "adamw");
  stays_in_step(
      [](nn::Module& net) {
        return std::make_unique<nn::Muon>(nn::split_for_muon(net), nn::MuonOptions{.lr = 0.02},
                                          nn::AdamWOptions{.lr = 0.002});
      },
      "muon");
}

TEST(CompareTraining, TheFreeRunSeesTheSameBatches) {
  const CompareReport report =
      compare_training([] { return small_net(); }, sgd(), batches(), {.steps = 4});
  for (const CompareTraining::Drift& at : report.train->drift) {
    EXPECT_NEAR(at.loss, at.other_loss, 1e-4 * at.loss) << at.step;
    EXPECT_LT(at.parameters, 1e-4);
    EXPECT_GT(at.parameters, 0);
  }
}

TEST(CompareTraining, StopsAtStepLayerAndDirection) {
  const CompareReport report = compare_training([] { return small_net(test::WrongLater(3)); },
                                                sgd(), batches(), {.steps = 10});
  ASSERT_TRUE(report.train->parted);
  const CompareParting& parted = *report.train->parted;
  EXPECT_EQ(parted.step, 3);
  EXPECT_EQ(parted.layer, "WrongLater");
  EXPECT_EQ(parted.path, "3");
  EXPECT_EQ(parted.direction, CompareDirection::backward);
  EXPECT_EQ(parted.value, "dx");
  EXPECT_NEAR(parted.error.got[0] / parted.error.want, 1.9 / 2, 1e-6);
  EXPECT_EQ(report.train->steps_done, 2);
  EXPECT_FALSE(report.ok());
}

// Values that are infinite or NaN on all sides say nothing of the layers: neither that they part
// nor that they are in step.
TEST(CompareTraining, ATrainingThatDivergesIsToldAsSuch) {
  for (const double lr : {1e10, 1e30}) {
    const MakeOptimizer make = [lr](nn::Module& net) {
      return std::make_unique<nn::SGD>(net.named_parameters(), nn::SGDOptions{.lr = lr});
    };
    const CompareReport report =
        compare_training([] { return small_net(); }, make, batches(), {.steps = 20});
    EXPECT_FALSE(report.train->parted) << report.train->parted->path;
    ASSERT_TRUE(report.train->diverged) << lr;
    EXPECT_GT(report.train->diverged->error.extreme, 0);
    EXPECT_EQ(report.train->steps_done, report.train->diverged->step - 1);
    EXPECT_FALSE(report.rows.empty());
    EXPECT_FALSE(report.ok());
    EXPECT_NE(report.missing.back().find("diverged at step "), std::string::npos);
    for (const CompareRow& row : report.rows) EXPECT_TRUE(row.ok()) << row.path;
    for (const CompareTraining::Layer& layer : report.train->layers)
      EXPECT_LE(layer.of_allowed, 1) << layer.path;
  }
}

TEST(CompareTraining, ForwardComesBeforeBackward) {
  const CompareReport report = compare_training([] { return small_net(test::Shifted(0.01, 5)); },
                                                sgd(), batches(), {.steps = 2});
  ASSERT_TRUE(report.train->parted);
  EXPECT_EQ(report.train->parted->layer, "Shifted");
  EXPECT_EQ(report.train->parted->direction, CompareDirection::forward);
  EXPECT_EQ(report.train->parted->error.worst, 5);
}

// An optimizer whose step in f32 forgets the gradient of the last parameter.
TEST(CompareTraining, TheOptimizerIsHeldToItsStep) {
  int made = 0;
  const MakeOptimizer wrong = [&](nn::Module& net) {
    const bool in_f32 = net.parameters()[0].dtype() == DType::f32;
    // The first is that of the training, the second that of the free run.
    const double lr = in_f32 && ++made > 2 ? 0.051 : 0.05;
    return std::make_unique<nn::SGD>(
        net.named_parameters(), nn::SGDOptions{.lr = 0.05, .weight_decay = in_f32 ? lr : 0.05});
  };
  const CompareReport report =
      compare_training([] { return small_net(); }, wrong, batches(), {.steps = 2});
  ASSERT_TRUE(report.train->parted);
  EXPECT_EQ(report.train->parted->path, "optimizer");
  EXPECT_EQ(report.train->parted->value.substr(0, 2), "0.");
}

// A layer that is there twice, and another that shares its weight with it.
TEST(CompareTraining, SharedParametersAreSteppedOnce) {
  const MakeModel make = [] {
    manual_seed(2);
    auto net = std::make_unique<nn::Sequential>(nn::Flatten(), nn::Linear(64, 8));
    const auto twice = std::make_shared<nn::Linear>(8, 8),
               tied = std::make_shared<nn::Linear>(8, 8);
    tied->weight = twice->weight;
    net->add(twice).add(nn::ReLU()).add(twice).add(tied).add(nn::Linear(8, 3));
    return net;
  };
  const CompareReport report = compare_training(make, sgd(), batches(), {.steps = 3});
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.train->steps_done, 3);
  for (const CompareTraining::Drift& at : report.train->drift) EXPECT_LT(at.parameters, 1e-4);
  // Each parameter and its momentum, once.
  EXPECT_EQ(report.rows.back().values.size(), 2 * make()->parameters().size());
}

TEST(CompareTraining, Refusals) {
  EXPECT_ERROR(compare_training([] { return small_net(); }, sgd(), batches(), {.steps = 0}),
               ErrorCode::invalid_argument, "steps");
}

TEST(CompareTrainingCuda, StaysInStep) {
  GRADUS_SKIP_WITHOUT(kCuda);
  for (const char* norm : {"batch", "group"}) {
    const auto make = [&] {
      manual_seed(1);
      return std::make_unique<nn::Sequential>(nn::small_cnn({.norm = norm}));
    };
    auto generator = std::make_shared<Generator>(kCpu, 5);
    const auto next = [&] {
      const Tensor x = randn({16, 1, 28, 28}, {}, generator.get());
      return nn::Batch{x, randint(0, 10, {16}, {.dtype = DType::i64}, generator.get())};
    };
    const CompareReport report = compare_training(make, sgd(), next, {.steps = 3});
    ASSERT_EQ(report.devices.size(), 2u);
    EXPECT_FALSE(report.train->parted) << report.train->parted->path;
    EXPECT_EQ(report.train->drift_device, kCuda);
  }
}

}  // namespace
}  // namespace gradus
