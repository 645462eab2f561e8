#include "nn/optim/adam.h"

#include "autograd/grad_mode.h"
#include "core/launch.h"
#include "core/trace.h"
#include "nn/capture.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/optim.h"
#include "tests/support/reference_optim.h"

namespace gradus::nn {
namespace {

using test::parameter;
using test::set_gradient;

class AdamTest : public test::EachDevice {};
GRADUS_ON_EACH_DEVICE(AdamTest);

struct Settings {
  std::pair<double, double> betas{0.9, 0.999};
  double eps = 1e-8, weight_decay = 0;
};

std::unique_ptr<Optimizer> make(const std::string& name, std::vector<Tensor> parameters,
                                const Settings& s = {}, double lr = 1e-3) {
  if (name == "adam") {
    return std::make_unique<Adam>(
        std::move(parameters),
        AdamOptions{.lr = lr, .betas = s.betas, .eps = s.eps, .weight_decay = s.weight_decay});
  }
  return std::make_unique<AdamW>(
      std::move(parameters),
      AdamWOptions{.lr = lr, .betas = s.betas, .eps = s.eps, .weight_decay = s.weight_decay});
}

TEST_P(AdamTest, Golden) {
  int cases = 0;
  for (const ref::Json& json : ref::golden_cases("optimizers")) {
    const std::string name = json.at("name");
    if (name != "adam" && name != "adamw") continue;
    const ref::Json& args = json.at("args");
    SCOPED_TRACE(name + " " + args.dump());
    Settings settings{.eps = args.value("eps", 1e-8),
                      .weight_decay = args.value("weight_decay", 0.0)};
    if (args.contains("betas")) settings.betas = {args.at("betas").at(0), args.at("betas").at(1)};
    for (const DType dtype : {DType::f64, DType::f32}) {
      Tensor w = parameter(ref::golden_array(json.at("initial")).data, dtype, GetParam());
      const auto optimizer = make(name, {w}, settings);
      for (const ref::Json& step : json.at("steps")) {
        optimizer->set_lr(step.at("lr"));
        set_gradient(w, ref::golden_array(step.at("gradient")).data);
        optimizer->step();
        const std::vector<double> want = ref::golden_array(step.at("w")).data;
        EXPECT_TRUE(agrees(w.to_vector<double>(), want, dtype, 8));
      }
    }
    ++cases;
  }
  EXPECT_EQ(cases, 4);
}

// Many tensors of every dtype and of sizes around a block, one of many, some unaligned, more than
// one launch takes, against the f64 reference. 16-bit parameters are rounded after every step.
TEST_P(AdamTest, ManyTensorsOfEveryDtype) {
  const Settings settings{.betas = {0.75, 0.5}, .eps = 1e-3, .weight_decay = 0.125};
  const ref::AdamOptions options{.beta1 = 0.75, .beta2 = 0.5, .eps = 1e-3, .weight_decay = 0.125};
  for (const std::string name : {"adam", "adamw"}) {
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      std::vector<Tensor> params;
      std::vector<ref::Array> want;
      for (int i = 0; i < 80; ++i) {
        const int64_t count = i == 7 ? 40'000 : i % 7 == 0 ? 1023 + i % 3 : i;
        std::vector<double> values;
        for (int64_t j = 0; j < count; ++j) values.push_back(static_cast<double>((i + j) % 8) / 8);
        Tensor p = parameter(values, dtype, GetParam());
        if (count > 1 && i % 2 == 1) p = p.detach().slice(0, 1, count).set_requires_grad(true);
        params.push_back(p);
        want.push_back({p.shape(), p.to_vector<double>()});
      }
      std::vector<ref::AdamState> states(params.size());
      const auto optimizer = make(name, params, settings, 0.25);
      for (int step = 0; step < 3; ++step) {
        for (size_t i = 0; i < params.size(); ++i) {
          ref::Array gradient = ref::zeros(want[i].shape);
          for (int64_t j = 0; j < gradient.numel(); ++j) {
            gradient[j] = static_cast<double>((j + step) % 5) / 4 - 0.5;
          }
          set_gradient(params[i], gradient.data);
          (name == "adam" ? ref::adam_step : ref::adamw_step)(want[i], gradient, states[i], 0.25,
                                                              options);
          for (double& value : want[i].data) value = round_to(value, dtype);
        }
        optimizer->step();
        for (size_t i = 0; i < params.size(); ++i) {
          EXPECT_TRUE(agrees(params[i].to_vector<double>(), want[i].data, dtype, 8, 1.0))
              << name << " " << to_string(dtype) << " " << i;
        }
      }
    }
  }
}

// Each parameter counts its own steps: one whose first gradient comes later is corrected as in its
// own first step.
TEST_P(AdamTest, EachParameterHasItsOwnFirstStep) {
  Tensor a = parameter({0.0}, DType::f64, GetParam()), b = parameter({0.0}, DType::f64, GetParam());
  Adam optimizer({a, b}, {.lr = 0.5, .eps = 0});
  set_gradient(a, {2.0});
  optimizer.step();
  EXPECT_NEAR(a.item<double>(), -0.5, 1e-12);
  EXPECT_EQ(b.item<double>(), 0.0);
  set_gradient(b, {-3.0});
  optimizer.step();
  EXPECT_NEAR(a.item<double>(), -1.0, 1e-12);
  EXPECT_NEAR(b.item<double>(), 0.5, 1e-12);
}

// Steps that a parameter is left out of, frozen or without a gradient, are none of its own: it goes
// on as by itself, also where the state was saved in between.
TEST_P(AdamTest, StepsWithoutAParameterDoNotCountForIt) {
  for (const std::string name : {"adam", "adamw"}) {
    const auto run = [&](bool alone, int resumed_after) {
      Tensor a = parameter({1, 2}, DType::f64, GetParam());
      Tensor b = parameter({-2, 0.5}, DType::f64, GetParam());
      const auto fresh = [&] { return make(name, alone ? std::vector{b} : std::vector{a, b}); };
      auto optimizer = fresh();
      for (int step = 0; step < 8; ++step) {
        const bool has_part = step < 2 || step == 4 || step == 7;
        if (!has_part && alone) continue;
        optimizer->zero_grad();
        set_gradient(a, {0.5, -1});
        b.set_requires_grad(step != 3);
        if (has_part || step == 3) set_gradient(b, {1, 0.25 * step - 1});
        optimizer->step();
        if (step != resumed_after) continue;
        auto again = fresh();
        again->load_state(optimizer->state());
        optimizer = std::move(again);
      }
      return b.to_vector<double>();
    };
    for (const int after : {-1, 1, 2, 3, 4, 5, 6})
      EXPECT_EQ(run(false, after), run(true, -1)) << after;
  }
}

// Who was left out of the steps before plays no part.
TEST_P(AdamTest, ALoadedStateSaysWhoWasLeftOut) {
  Tensor a = parameter({1}, DType::f64, GetParam()), b = parameter({1}, DType::f64, GetParam());
  const auto whole = make("adam", {a}), left_out = make("adam", {b});
  for (int step = 0; step < 3; ++step) {
    set_gradient(a, {1.0 + step});
    whole->step();
    if (step == 0) set_gradient(b, {1.0});
    left_out->step();
    b.zero_grad();
  }
  left_out->load_state(whole->state());
  b.detach().copy_(a.detach());
  set_gradient(a, {-2});
  set_gradient(b, {-2});
  whole->step();
  left_out->step();
  EXPECT_EQ(b.item<double>(), a.item<double>());
}

// Two mutants of AdamW that take the decay in the wrong order; the comparison tells them apart.
TEST_P(AdamTest, DecayOfAdamWComesFirst) {
  Tensor w = parameter({2.0}, DType::f64, GetParam());
  AdamW optimizer({w}, {.lr = 0.5, .eps = 0, .weight_decay = 0.25});
  set_gradient(w, {1.0});
  optimizer.step();
  EXPECT_NEAR(w.item<double>(), 2.0 * (1 - 0.125) - 0.5, 1e-12);
  EXPECT_GT(std::abs(w.item<double>() - (2.0 - 0.5) * (1 - 0.125)), 1e-3);
}

TEST_P(AdamTest, ResumedIsUnbrokenBitForBit) {
  for (const std::string name : {"adam", "adamw"}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const auto run = [&](bool breaks) {
        Tensor w = parameter({1, -2, 0.5, 3, 0.25}, dtype, GetParam());
        auto optimizer = make(name, {w}, {.weight_decay = 0.1}, 0.1);
        for (int step = 0; step < 6; ++step) {
          if (breaks && step == 3) {
            auto fresh = make(name, {w}, {.weight_decay = 0.1}, 0.1);
            fresh->load_state(optimizer->state());
            optimizer = std::move(fresh);
          }
          set_gradient(w, {1, -0.5, 0.25, static_cast<double>(step), -1});
          optimizer->step();
        }
        return w.to_vector<double>();
      };
      EXPECT_EQ(run(true), run(false));
    }
  }
}

TEST_P(AdamTest, NothingChangesAfterAFailedStep) {
  Tensor w = parameter({1.0}, DType::f32, GetParam());
  Tensor failed = Tensor::full({1}, -1, {.dtype = DType::i64, .device = GetParam()});
  Adam optimizer({w}, {.lr = 0.5});
  optimizer.set_failed_step(failed);
  set_gradient(w, {1.0});
  optimizer.step();
  const std::vector<NamedTensor> before = optimizer.state();
  const float value = w.item<float>();
  const double moment = before[3].tensor.item<double>();
  failed.fill_(0);
  optimizer.step();
  EXPECT_EQ(w.item<float>(), value);
  EXPECT_EQ(optimizer.state()[3].tensor.item<double>(), moment);
}

TEST_P(AdamTest, AStateIsThatOfItsMoment) {
  const auto run = [](int steps_undone) {
    Tensor w = parameter({1.0}, DType::f64, GetParam());
    Adam optimizer({w}, {.lr = 0.1});
    const std::vector<NamedTensor> state = optimizer.state();
    for (int step = 0; step < steps_undone; ++step) {
      set_gradient(w, {3.0});
      optimizer.step();
    }
    {
      const NoGradGuard no_grad;
      w.fill_(1.0);
    }
    optimizer.load_state(state);
    set_gradient(w, {0.01});
    optimizer.step();
    EXPECT_EQ(optimizer.steps(), 1);
    return w.item<double>();
  };
  EXPECT_EQ(run(5), run(0));
}

TEST_P(AdamTest, AStateOfAnotherTypeIsRefused) {
  const auto of = [](DType dtype) {
    return std::make_unique<Adam>(std::vector{parameter({1.0}, dtype, GetParam())}, AdamOptions{});
  };
  EXPECT_ERROR(of(DType::f32)->load_state(of(DType::f64)->state()), ErrorCode::invalid_argument,
               "exp_avg.0 is f32[1] in this run and f64[1] in the saved state");
}

TEST_P(AdamTest, GradientInAnotherFormatAndEmptyParameters) {
  const TensorOptions options{.dtype = DType::f64, .device = GetParam()};
  TensorOptions last = options;
  last.format = MemoryFormat::channels_last;
  Tensor w = Tensor::zeros({1, 2, 2, 2}, options).set_requires_grad(true);
  Tensor none = Tensor::zeros({0, 3}, options).set_requires_grad(true);
  const std::vector<double> values{1, -2, 3, -4, 5, -6, 7, -8};
  w.set_grad(Tensor::from_vector(values, w.shape(), last));
  none.set_grad(Tensor::zeros({0, 3}, options));
  Adam optimizer({w, none}, {.lr = 1.0, .eps = 0});
  optimizer.step();
  const std::vector<double> got = w.to_vector<double>();
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], values[i] > 0 ? -1 : 1, 1e-12);
}

// One launch per dtype, however many parameters; on CUDA the step is captured and replayed with its
// counter going on.
TEST_P(AdamTest, OneLaunchAndReplay) {
  std::vector<Tensor> params;
  for (int i = 0; i < 20; ++i) params.push_back(parameter({1.0, 2.0}, DType::f32, GetParam()));
  Tensor eager = parameter({1.0, 2.0}, DType::f32, GetParam());
  Adam optimizer(params, {.lr = 0.1}), twin({eager}, {.lr = 0.1});
  for (Tensor& p : params) set_gradient(p, {0.5, -1});
  set_gradient(eager, {0.5, -1});
  {
    const Trace trace;
    optimizer.step();
    int launches = 0;
    for (const TraceRecord& record : trace.records()) launches += record.name == "adam_step";
    EXPECT_EQ(launches, 1);
  }
  twin.step();
  CapturedStep captured(GetParam(), [&] { optimizer.step(); });
  for (int i = 0; i < 10; ++i) {
    captured.run();
    twin.step();
  }
  EXPECT_EQ(params[7].to_vector<double>(), eager.to_vector<double>());
  EXPECT_EQ(optimizer.steps(), 11);
}

TEST(Adam, Errors) {
  const auto invalid = ErrorCode::invalid_argument;
  const Tensor w = parameter({1.0}, DType::f32, kCpu);
  EXPECT_ERROR(Adam({w}, {.betas = {1.0, 0.9}}), invalid,
               "adam: betas must be 0 or more and below 1");
  EXPECT_ERROR(Adam({w}, {.betas = {0.9, -0.1}}), invalid, "betas", "-0.1");
  EXPECT_ERROR(AdamW({w}, {.eps = -1}), invalid, "adamw: eps");
  EXPECT_ERROR(AdamW({w}, {.weight_decay = -1}), invalid, "weight_decay");
  EXPECT_ERROR(Adam({w}, {.lr = -1}), invalid, "learning rate");
}

TEST(Adam, NamesAndStateArePyTorchs) {
  const Tensor w = parameter({1.0}, DType::bf16, kCpu);
  Adam optimizer(std::vector<NamedTensor>{{"0.weight", w}});
  std::vector<std::string> names;
  for (const NamedTensor& entry : optimizer.state()) names.push_back(entry.name);
  EXPECT_EQ(names, (std::vector<std::string>{"step", "lr", "born", "exp_avg.0.weight",
                                             "exp_avg_sq.0.weight"}));
  EXPECT_EQ(optimizer.state()[3].tensor.dtype(), DType::f32);
  EXPECT_EQ(optimizer.settings(), "beta1 0.9, beta2 0.999, eps 1e-08, weight_decay 0");
  EXPECT_EQ(AdamW({w}).settings(), "beta1 0.9, beta2 0.999, eps 1e-08, weight_decay 0.01");
}

}  // namespace
}  // namespace gradus::nn
