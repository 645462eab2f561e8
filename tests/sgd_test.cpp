#include "nn/optim/sgd.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/grad_mode.h"
#include "autograd/ops/arithmetic.h"
#include "core/launch.h"
#include "nn/capture.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/optim.h"

namespace gradus::nn {
namespace {

using test::parameter;
using test::set_gradient;
using SgdTest = test::EachDevice;

TEST_P(SgdTest, Golden) {
  for (const ref::Json& json : ref::golden_cases("sgd")) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      const ref::Json& args = json.at("args");
      Tensor w = parameter(ref::golden_array(json.at("initial")).data, dtype, GetParam());
      SGD optimizer({w}, {.momentum = args.at("momentum"),
                          .weight_decay = args.at("weight_decay"),
                          .nesterov = args.at("nesterov")});
      for (const ref::Json& step : json.at("steps")) {
        optimizer.set_lr(step.at("lr"));
        set_gradient(w, ref::golden_array(step.at("gradient")).data);
        optimizer.step();
        const std::vector<double> want = ref::golden_array(step.at("w")).data;
        EXPECT_TRUE(agrees(w.to_vector<double>(), want, dtype, 8)) << args;
      }
    }
  }
}

// It keeps the table that it was captured with where another takes its place.
TEST_P(SgdTest, ACapturedStepOutlivesItsSchedule) {
  constexpr int kSteps = 64;
  Tensor w = parameter({0.0}, DType::f64, GetParam());
  set_gradient(w, {-1});
  SGD optimizer({w}, {});
  const auto one = [](int64_t) { return 1.0; };
  optimizer.set_schedule(one, kSteps);
  CapturedStep step(GetParam(), [&] { optimizer.step(); });
  for (int i = 0; i <= CapturedStep::kWarmUp; ++i) step.run();
  double before = w.item<double>();
  optimizer.set_schedule([](int64_t) { return 2.0; }, kSteps);
  const Tensor other = Tensor::full({kSteps}, 1000.0, w.detach().options());  // in freed memory
  step.run();
  EXPECT_EQ(w.item<double>() - before, step.captured() ? 1.0 : 2.0);
  // A rate for all steps reaches that table, too.
  before = w.item<double>();
  optimizer.set_lr(3.0);
  step.run();
  EXPECT_EQ(w.item<double>() - before, 3.0);
}

// Momentum 0.9 and a gradient of 1 three times; the state saved and loaded after the second step.
TEST_P(SgdTest, MomentumSurvivesSaveAndLoad) {
  const SGDOptions options{.lr = 0.1, .momentum = 0.9};
  Tensor w = parameter({1.0}, DType::f64, GetParam());
  auto optimizer = std::make_unique<SGD>(std::vector{w}, options);
  const std::vector<double> want{0.9, 0.71, 0.439};
  for (size_t i = 0; i < 3; ++i) {
    if (i == 2) {
      const std::vector<NamedTensor> state = optimizer->state();
      auto fresh = std::make_unique<SGD>(std::vector{w}, options);
      fresh->load_state(state);
      optimizer = std::move(fresh);
    }
    set_gradient(w, {1.0});
    optimizer->step();
    EXPECT_NEAR(w.item<double>(), want[i], 1e-15);
    EXPECT_EQ(optimizer->steps(), static_cast<int64_t>(i) + 1);
  }
}

TEST_P(SgdTest, AStateOfMoreThanItHasIsRefused) {
  Tensor w = parameter({1.0}, DType::f64, GetParam());
  const SGD given({w}, {.momentum = 0.9});
  SGD plain({w}, {});
  EXPECT_ERROR(plain.load_state(given.state()), ErrorCode::invalid_argument,
               "the saved state has momentum_buffer.0, which this run lacks");
}

// The decay is part of the gradient, so that a gradient of 0 still shrinks the weight by lr·decay.
TEST_P(SgdTest, WeightDecayActsThroughTheGradient) {
  Tensor w = parameter({1.0}, DType::f64, GetParam());
  SGD optimizer({w}, {.lr = 0.1, .momentum = 0.5, .weight_decay = 0.01});
  set_gradient(w, {0.0});
  optimizer.step();
  EXPECT_NEAR(w.item<double>(), 0.999, 1e-15);
  set_gradient(w, {0.0});
  optimizer.step();  // buf = 0.5·0.01 + 0.01·0.999
  EXPECT_NEAR(w.item<double>(), 0.999 - 0.1 * (0.005 + 0.00999), 1e-15);
}

// The first step takes the gradient itself into the buffer, dampening or not; and a parameter
// whose first gradient comes later has its own first step.
TEST_P(SgdTest, FirstStepOfEachParameterIsNotDampened) {
  Tensor a = parameter({0.0}, DType::f64, GetParam()), b = parameter({0.0}, DType::f64, GetParam());
  SGD optimizer({a, b}, {.lr = 1.0, .momentum = 0.5, .dampening = 0.75});
  set_gradient(a, {1.0});
  optimizer.step();  // a: buf 1
  EXPECT_EQ(a.item<double>(), -1.0);
  EXPECT_EQ(b.item<double>(), 0.0);
  set_gradient(b, {1.0});
  optimizer.step();  // a: buf 0.5 + 0.25; b: buf 1
  EXPECT_EQ(a.item<double>(), -1.75);
  EXPECT_EQ(b.item<double>(), -1.0);
}

TEST_P(SgdTest, AParameterIsBornAfterItsStateWasLoaded) {
  const SGDOptions options{.lr = 1.0, .momentum = 0.5, .dampening = 0.75};
  Tensor a = parameter({0.0}, DType::f64, GetParam()), b = parameter({0.0}, DType::f64, GetParam());
  SGD first({a, b}, options), second({a, b}, options);
  set_gradient(a, {1.0});
  first.step();
  second.load_state(first.state());
  set_gradient(b, {1.0});
  second.step();
  EXPECT_EQ(a.item<double>(), -1.75);
  EXPECT_EQ(b.item<double>(), -1.0) << "its first step, though not the optimizer's";
}

TEST_P(SgdTest, AStepIsNoticedByGraphsOfBefore) {
  const Tensor w = parameter({2.0}, DType::f64, GetParam());
  Tensor idle = parameter({1.0}, DType::f64, GetParam());
  const Tensor y = w * w;
  y.backward({}, true);
  SGD({w, idle}, {.lr = 0.5}).step();
  EXPECT_ERROR(y.backward(), ErrorCode::autograd, "was changed in place");
  EXPECT_EQ(idle.storage()->version(), 0u);
}

TEST_P(SgdTest, FrozenAndUntouchedParametersStay) {
  Tensor frozen = parameter({1.0}, DType::f32, GetParam());
  Tensor untouched = parameter({1.0}, DType::f32, GetParam());
  Tensor moving = parameter({1.0}, DType::f32, GetParam());
  SGD optimizer({frozen, untouched, moving}, {.lr = 0.5, .weight_decay = 0.1});
  set_gradient(frozen, {1.0});
  frozen.set_requires_grad(false);
  set_gradient(moving, {1.0});
  const uint64_t version = untouched.storage()->version();
  optimizer.step();
  EXPECT_EQ(frozen.item<double>(), 1.0);
  EXPECT_EQ(untouched.item<double>(), 1.0);
  EXPECT_EQ(untouched.storage()->version(), version);
  EXPECT_NEAR(moving.item<double>(), 1.0 - 0.5 * 1.1, 1e-7);
}

// Many tensors of every dtype and of sizes around a block, one of many, against the f64 reference:
// more than one launch takes, unaligned, and with a channels-last gradient for a contiguous weight.
TEST_P(SgdTest, ManyTensorsOfEveryDtype) {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    const double momentum = 0.5, lr = 0.25, decay = 0.125;  // exact in every dtype
    std::vector<Tensor> params;
    for (int i = 0; i < 70; ++i) {
      const int64_t count = i == 7 ? 40'000 : i % 7 == 0 ? 1023 + i % 3 : i;
      std::vector<double> values;
      for (int64_t j = 0; j < count; ++j) values.push_back(static_cast<double>((i + j) % 8) / 8);
      Tensor p = parameter(values, dtype, GetParam());
      if (count > 1 && i % 2 == 1) p = p.detach().slice(0, 1, count).set_requires_grad(true);
      params.push_back(p);
    }
    SGD optimizer(params, {.lr = lr, .momentum = momentum, .weight_decay = decay});
    std::vector<std::vector<double>> want, buf;
    for (Tensor& p : params) {
      want.push_back(p.to_vector<double>());
      buf.emplace_back(want.back().size(), 0.0);
    }
    for (int step = 0; step < 2; ++step) {
      for (size_t i = 0; i < params.size(); ++i) {
        set_gradient(params[i], std::vector<double>(want[i].size(), 0.5));
        for (size_t j = 0; j < want[i].size(); ++j) {
          buf[i][j] = momentum * buf[i][j] + 0.5 + decay * want[i][j];
          want[i][j] = round_to(want[i][j] - lr * buf[i][j], dtype);
        }
      }
      optimizer.step();
      for (size_t i = 0; i < params.size(); ++i) {
        EXPECT_TRUE(agrees(params[i].to_vector<double>(), want[i], dtype, 2))
            << to_string(dtype) << " " << i;
      }
    }
  }
}

TEST_P(SgdTest, GradientInAnotherFormat) {
  const std::vector<double> values{1, 2, 3, 4, 5, 6, 7, 8};
  const TensorOptions options{.dtype = DType::f64, .device = GetParam()};
  TensorOptions last = options;
  last.format = MemoryFormat::channels_last;
  Tensor w = Tensor::zeros({1, 2, 2, 2}, options).set_requires_grad(true);
  w.set_grad(Tensor::from_vector(values, w.shape(), last));
  SGD optimizer({w}, {.lr = 1.0, .momentum = 0.5});
  optimizer.step();
  const std::vector<double> got = w.to_vector<double>();
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(got[i], -values[i]);
}

TEST_P(SgdTest, ScheduleIsReadOnTheDevice) {
  Tensor w = parameter({0.0}, DType::f64, GetParam());
  SGD optimizer({w}, {});
  optimizer.set_schedule([](int64_t t) { return static_cast<double>(t + 1); }, 3);
  double want = 0;
  for (const double rate : {1.0, 2.0, 3.0, 3.0, 3.0}) {  // kept after the end
    set_gradient(w, {1.0});
    optimizer.step();
    want -= rate;
    EXPECT_EQ(w.item<double>(), want);
    EXPECT_EQ(optimizer.lr(), rate);
  }
  optimizer.set_lr(10.0);
  set_gradient(w, {1.0});
  optimizer.step();
  EXPECT_EQ(w.item<double>(), want - 10);
}

TEST_P(SgdTest, NothingChangesAfterAFailedStep) {
  Tensor w = parameter({1.0}, DType::f32, GetParam());
  Tensor failed = Tensor::full({1}, -1, {.dtype = DType::i64, .device = GetParam()});
  SGD optimizer({w}, {.lr = 0.5, .momentum = 0.5});
  optimizer.set_failed_step(failed);
  set_gradient(w, {1.0});
  optimizer.step();
  EXPECT_EQ(w.item<float>(), 0.5f);
  failed.fill_(0);
  optimizer.step();
  EXPECT_EQ(w.item<float>(), 0.5f);
  failed.fill_(-1);
  optimizer.step();  // buf was left at 1
  EXPECT_EQ(w.item<float>(), 0.5f - 0.5f * 1.5f);
}

TEST_P(SgdTest, EmptyParameter) {
  Tensor w = parameter({}, DType::f32, GetParam());
  SGD optimizer({w}, {.lr = 0.5, .momentum = 0.5});
  set_gradient(w, {});
  optimizer.step();
  EXPECT_EQ(optimizer.steps(), 1);
}

GRADUS_ON_EACH_DEVICE(SgdTest);

TEST(SGD, DefaultsAreThoseOfPyTorch) {
  Tensor w = parameter({1.0}, DType::f64, kCpu);
  const std::vector<Tensor> parameters{w};
  SGD optimizer(parameters);
  EXPECT_EQ(optimizer.lr(), 1e-3);
  EXPECT_EQ(optimizer.settings(), "momentum 0, dampening 0, weight_decay 0, nesterov false");
  set_gradient(w, {2.0});
  optimizer.step();
  EXPECT_EQ(w.item<double>(), 1.0 - 1e-3 * 2.0);
}

TEST(SGD, Errors) {
  const Tensor w = parameter({1.0}, DType::f32, kCpu);
  const auto make = [&](const SGDOptions& options) { SGD({w}, options); };
  EXPECT_ERROR(SGD({w, parameter({1.0}, DType::f32, kCpu), w}, {}), ErrorCode::invalid_argument,
               "optimizer: 0 and 2 are one parameter");
  const Tensor other = parameter({1.0}, DType::f32, kCpu);
  EXPECT_ERROR(SGD(std::vector<NamedTensor>{{"weight", w}, {"weight", other}}),
               ErrorCode::invalid_argument, "optimizer: two parameters are named weight");
  EXPECT_ERROR(SGD({w}, {}).set_schedule(nullptr, 1), ErrorCode::invalid_argument,
               "empty function");
  EXPECT_ERROR(make({.lr = -1}), ErrorCode::invalid_argument, "learning rate", "-1");
  EXPECT_ERROR(make({.momentum = -0.5}), ErrorCode::invalid_argument, "momentum", "-0.5");
  EXPECT_ERROR(make({.weight_decay = -1}), ErrorCode::invalid_argument, "weight_decay");
  EXPECT_ERROR(make({.nesterov = true}), ErrorCode::invalid_argument, "nesterov needs momentum");
  EXPECT_ERROR(make({.momentum = 0.9, .dampening = 0.1, .nesterov = true}),
               ErrorCode::invalid_argument, "nesterov");
  EXPECT_ERROR(SGD(std::vector<Tensor>{}, {}), ErrorCode::invalid_argument, "at least one");
  EXPECT_ERROR(SGD({Tensor::zeros({2}, {.dtype = DType::i64})}, {}), ErrorCode::invalid_argument,
               "floating leaf", "i64[2]");
  EXPECT_ERROR(SGD({Tensor::zeros({2, 2}).transpose(0, 1)}, {}), ErrorCode::invalid_argument,
               "contiguous");
}

TEST(SGD, AStateWithoutASoundRateIsRefused) {
  const Tensor w = parameter({1.0}, DType::f32, kCpu);
  SGD optimizer({w}, {.lr = 0.1});
  for (const double lr : {-3.0, std::nan("")}) {
    std::vector<NamedTensor> state = optimizer.state();
    state[1].tensor.fill_(lr);
    EXPECT_ERROR(optimizer.load_state(state), ErrorCode::invalid_argument,
                 "sgd: expected a learning rate of 0 or more, got ");
  }
  EXPECT_EQ(optimizer.lr(), 0.1);
}

TEST(SGD, StateOfAnotherModelNamesTheFirstDifference) {
  const Tensor a = parameter({1.0, 2.0}, DType::f32, kCpu);
  const Tensor b = parameter({1.0}, DType::f32, kCpu);
  const SGDOptions options{.momentum = 0.9};
  SGD two(std::vector<NamedTensor>{{"0.weight", a}, {"1.weight", b}}, options);
  const Tensor c = parameter({1.0}, DType::f32, kCpu);
  SGD other(std::vector<NamedTensor>{{"0.weight", b}, {"1.weight", c}}, options);
  SGD one(std::vector<NamedTensor>{{"0.weight", a}}, options);
  EXPECT_ERROR(two.load_state(other.state()), ErrorCode::invalid_argument,
               "momentum_buffer.0.weight is f32[2] in this run and f32[1]");
  EXPECT_ERROR(two.load_state(one.state()), ErrorCode::invalid_argument, "born is i64[2]");
  two.set_schedule([](int64_t) { return 0.5; }, 4);
  EXPECT_ERROR(two.load_state(other.state()), ErrorCode::invalid_argument,
               "this run has schedule, which the saved state lacks");
}

}  // namespace
}  // namespace gradus::nn
