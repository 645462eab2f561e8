#include "nn/optim/muon.h"

#include "autograd/autocast.h"
#include "core/launch.h"
#include "core/trace.h"
#include "nn/capture.h"
#include "nn/conv2d.h"
#include "nn/flatten.h"
#include "nn/init.h"
#include "nn/layer_norm.h"
#include "nn/linear.h"
#include "nn/sequential.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/optim.h"
#include "tests/support/reference_optim.h"

namespace gradus::nn {
namespace {

using test::parameter;
using test::set_gradient;

class MuonTest : public test::EachDevice {};
GRADUS_ON_EACH_DEVICE(MuonTest);

ref::MuonOptions reference_of(const MuonOptions& o) {
  ref::MuonOptions r{
      .momentum = o.momentum, .nesterov = o.nesterov, .weight_decay = o.weight_decay};
  r.eps = o.eps;
  r.ns_steps = o.ns_steps;
  r.adjust = o.adjust == MuonAdjust::original ? ref::MuonOptions::Adjust::original
                                              : ref::MuonOptions::Adjust::match_rms_adamw;
  return r;
}

// Iterations amplify roundings: each multiplies errors by up to |a| + |b| + |c|-like factors, and
// five of them lose about two digits.
Tolerance loosened(DType dtype) {
  Tolerance tolerance = gradus::tolerance(dtype, 64);
  tolerance.of_scale *= 64;
  return tolerance;
}

TEST_P(MuonTest, Golden) {
  int cases = 0;
  for (const ref::Json& json : ref::golden_cases("optimizers")) {
    if (json.at("name") != "muon") continue;
    const ref::Json& args = json.at("args");
    SCOPED_TRACE(args.dump());
    const MuonOptions options{.weight_decay = args.at("weight_decay"),
                              .momentum = args.at("momentum"),
                              .nesterov = args.at("nesterov"),
                              .adjust = args.at("adjust") == "original"
                                            ? MuonAdjust::original
                                            : MuonAdjust::match_rms_adamw};
    for (const DType dtype : {DType::f64, DType::f32}) {
      const ref::Array initial = ref::golden_array(json.at("initial"));
      Tensor w = parameter(initial.data, initial.shape, dtype, GetParam());
      Muon optimizer({w}, options);
      for (const ref::Json& step : json.at("steps")) {
        optimizer.set_lr(step.at("lr"));
        set_gradient(w, ref::golden_array(step.at("gradient")).data);
        optimizer.step();
        const std::vector<double> want = ref::golden_array(step.at("w")).data;
        EXPECT_TRUE(agrees(w.to_vector<double>(), want, dtype, loosened(dtype), 0.0));
      }
    }
    ++cases;
  }
  EXPECT_EQ(cases, 3);
}

// Wide, tall, square and filters; equal shapes share a batch; every dtype.
TEST_P(MuonTest, ManyMatricesOfEveryDtype) {
  const std::vector<Shape> shapes{{3, 4}, {8, 2},       {5, 5},       {3, 4},   {1, 6},   {6, 1},
                                  {1, 1}, {4, 2, 3, 3}, {2, 4, 1, 1}, {33, 40}, {300, 56}};
  for (const MuonAdjust adjust : {MuonAdjust::original, MuonAdjust::match_rms_adamw}) {
    const MuonOptions options{.lr = 0.25, .weight_decay = 0.125, .momentum = 0.5, .adjust = adjust};
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      std::vector<Tensor> params;
      std::vector<ref::Array> want, buffers(shapes.size());
      for (size_t i = 0; i < shapes.size(); ++i) {
        const ref::Array start = draw_upstream(shapes[i], dtype, 10 + i);
        params.push_back(parameter(start.data, shapes[i], dtype, GetParam()));
        const int64_t rows = shapes[i][0];
        want.push_back({{rows, shapes[i].numel() / rows}, start.data});
      }
      Muon optimizer(params, options);
      for (int step = 0; step < 2; ++step) {
        for (size_t i = 0; i < shapes.size(); ++i) {
          const auto seed = 100 * static_cast<uint64_t>(step) + i;
          const ref::Array gradient = draw_upstream(want[i].shape, dtype, seed);
          set_gradient(params[i], gradient.data);
          ref::muon_step(want[i], gradient, buffers[i], 0.25, reference_of(options));
          for (double& value : want[i].data) value = round_to(value, dtype);
        }
        optimizer.step();
        for (size_t i = 0; i < shapes.size(); ++i) {
          EXPECT_TRUE(
              agrees(params[i].to_vector<double>(), want[i].data, dtype, loosened(dtype), 0.0))
              << to_string(dtype) << " " << to_string(shapes[i]);
        }
      }
    }
  }
}

// More of them than the threads that add up the norm.
TEST_P(MuonTest, NormOfManyElements) {
  const Shape shape{2, 1200001};
  const MuonOptions options{.lr = 0.25};
  const ref::Array start = draw_upstream(shape, DType::f64, 1);
  const ref::Array gradient = draw_upstream(shape, DType::f64, 2);
  Tensor w = parameter(start.data, shape, DType::f64, GetParam());
  Muon optimizer({w}, options);
  set_gradient(w, gradient.data);
  optimizer.step();
  ref::Array want = start, buffer;
  ref::muon_step(want, gradient, buffer, 0.25, reference_of(options));
  EXPECT_TRUE(agrees(w.to_vector<double>(), want.data, DType::f64, loosened(DType::f64), 0.0));
}

// The step of a square matrix has singular values near 1, whatever the size of the gradient.
TEST_P(MuonTest, StepIsNearlyOrthogonal) {
  for (const double size : {1e-3, 1.0, 1e6}) {
    Tensor w = parameter(std::vector<double>(9, 0), {3, 3}, DType::f64, GetParam());
    Muon optimizer({w}, {.lr = 1, .weight_decay = 0});
    set_gradient(w, {4 * size, size, 0, -size, 3 * size, size, 0, size, -2 * size});
    optimizer.step();
    const std::vector<double> o = w.to_vector<double>();
    double squares = 0;  // Σ of the squared singular values
    for (const double value : o) squares += value * value;
    EXPECT_GT(squares, 3 * 0.6 * 0.6);
    EXPECT_LT(squares, 3 * 1.3 * 1.3);
  }
}

TEST_P(MuonTest, FilterIsTheMatrixOfItsFirstAxis) {
  const ref::Array start = draw_upstream({4, 2, 3, 3}, DType::f64, 1);
  const ref::Array gradient = draw_upstream({4, 2, 3, 3}, DType::f64, 2);
  std::vector<std::vector<double>> results;
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    Tensor w = Tensor::from_vector(start.data, start.shape,
                                   {.dtype = DType::f64, .device = GetParam(), .format = format})
                   .set_requires_grad(true);
    Muon optimizer({w}, {.lr = 0.5});
    set_gradient(w, gradient.data);
    optimizer.step();
    results.push_back(w.to_vector<double>());
  }
  Tensor matrix = parameter(start.data, {4, 18}, DType::f64, GetParam());
  Muon optimizer({matrix}, {.lr = 0.5});
  set_gradient(matrix, gradient.data);
  optimizer.step();
  EXPECT_EQ(results[0], matrix.to_vector<double>());
  EXPECT_TRUE(agrees(results[1], results[0], DType::f64, 64, 64.0));
}

// Neither TF32 nor autocast around the step changes its bits.
TEST_P(MuonTest, StepIsStrict) {
  const ref::Array start = draw_upstream({16, 24}, DType::f32, 1);
  const auto run = [&](bool guarded) {
    Tensor w = parameter(start.data, start.shape, DType::f32, GetParam());
    Muon optimizer({w}, {.lr = 0.5});
    set_gradient(w, start.data);
    if (guarded) {
      const MatmulPrecisionGuard tf32(MatmulPrecision::tf32);
      const AutocastGuard half(DType::bf16);
      optimizer.step();
    } else {
      optimizer.step();
    }
    return w.to_vector<double>();
  };
  EXPECT_EQ(run(true), run(false));
}

// Two filters and a matrix; the inner filter is Muon's.
Sequential small_net(Device device) {
  manual_seed(1);
  Sequential net(Conv2d(1, 4, 3), LayerNorm({4, 3, 3}), Conv2d(4, 4, 3), Flatten(), Linear(4, 5));
  net.to(device);
  return net;
}

void set_gradients(Sequential& net, int step) {
  const std::vector<Tensor> parameters = net.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    Tensor p = parameters[i];
    const auto seed = static_cast<uint64_t>(step) * 10 + i;
    set_gradient(p, draw_upstream(p.shape(), DType::f32, seed).data);
  }
}

TEST_P(MuonTest, OthersGoByAdamWAtTheirOwnRate) {
  Sequential net = small_net(GetParam()), twin = small_net(GetParam());
  Muon optimizer(split_for_muon(net), {.lr = 0.02}, {.lr = 0.005, .weight_decay = 0.1});
  MuonSplit split = split_for_muon(twin);
  AdamW adamw(split.others, {.lr = 0.005, .weight_decay = 0.1});
  Muon alone(split.hidden, {.lr = 0.02});
  for (int step = 0; step < 3; ++step) {
    set_gradients(net, step);
    set_gradients(twin, step);
    optimizer.step();
    adamw.step();
    alone.step();
  }
  const std::vector<NamedTensor> got = net.named_parameters(), want = twin.named_parameters();
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(agrees(got[i].tensor.to_vector<double>(), want[i].tensor.to_vector<double>(),
                       DType::f32, 4))
        << got[i].name;
  }
}

TEST_P(MuonTest, OthersStayWhereTheirRateIsZero) {
  Sequential net = small_net(GetParam());
  MuonSplit split = split_for_muon(net);
  const auto values_of = [](const std::vector<NamedTensor>& parameters) {
    std::vector<std::vector<double>> values;
    for (const NamedTensor& p : parameters) values.push_back(p.tensor.to_vector<double>());
    return values;
  };
  const auto hidden = values_of(split.hidden), others = values_of(split.others);
  Muon optimizer(split, {.lr = 0.02}, {.lr = 0});
  set_gradients(net, 1);
  optimizer.step();
  EXPECT_EQ(values_of(split.others), others);
  EXPECT_NE(values_of(split.hidden), hidden);
}

TEST_P(MuonTest, ResumedIsUnbrokenBitForBit) {
  const auto run = [&](bool breaks) {
    Sequential net = small_net(GetParam());
    const auto make = [&] {
      auto optimizer = std::make_unique<Muon>(split_for_muon(net), MuonOptions{.lr = 0.02});
      optimizer->set_schedule(schedules::one_cycle(0.02, 6), 6);
      return optimizer;
    };
    auto optimizer = make();
    for (int step = 0; step < 6; ++step) {
      if (breaks && step == 3) {
        auto fresh = make();
        fresh->load_state(optimizer->state());
        optimizer = std::move(fresh);
      }
      set_gradients(net, step);
      optimizer->step();
    }
    std::vector<std::vector<double>> values;
    for (const Tensor& p : net.parameters()) values.push_back(p.to_vector<double>());
    return values;
  };
  EXPECT_EQ(run(true), run(false));
}

TEST_P(MuonTest, ReplayedIsEager) {
  const auto run = [&](bool capture) {
    Sequential net = small_net(GetParam());
    Muon optimizer(split_for_muon(net), {.lr = 0.02});
    set_gradients(net, 1);
    CapturedStep step(GetParam(), [&] { optimizer.step(); });
    for (int i = 0; i < 10; ++i) capture ? step.run() : optimizer.step();
    std::vector<std::vector<double>> values;
    for (const Tensor& p : net.parameters()) values.push_back(p.to_vector<double>());
    return values;
  };
  EXPECT_EQ(run(true), run(false));
}

TEST_P(MuonTest, NothingChangesAfterAFailedStep) {
  Tensor w = parameter({1, 2, 3, 4}, {2, 2}, DType::f32, GetParam());
  Tensor failed = Tensor::full({1}, 0, {.dtype = DType::i64, .device = GetParam()});
  Muon optimizer({w}, {.lr = 0.5});
  optimizer.set_failed_step(failed);
  set_gradient(w, {1, 0, 0, 1});
  optimizer.step();
  EXPECT_EQ(w.to_vector<double>(), (std::vector<double>{1, 2, 3, 4}));
  EXPECT_EQ(optimizer.state()[3].tensor.to_vector<double>(), (std::vector<double>{0, 0, 0, 0}));
}

TEST_P(MuonTest, EmptyParameters) {
  Tensor none = parameter({}, {0, 3}, DType::f32, GetParam());
  Tensor some = parameter({1, 0, 0, 1}, {2, 2}, DType::f32, GetParam());
  set_gradient(none, {});
  set_gradient(some, {1, 0, 0, 1});
  Muon({none, some}, {}).step();
  EXPECT_NE(some.to_vector<double>()[0], 1);
}

// Equal shapes share one chain of products: as many launches for three matrices as for one.
TEST_P(MuonTest, EqualShapesShareTheirProducts) {
  const auto launches = [&](int matrices) {
    std::vector<Tensor> params;
    for (int i = 0; i < matrices; ++i) {
      params.push_back(parameter({1, 2, 3, 4, 5, 6}, {2, 3}, DType::f32, GetParam()));
      set_gradient(params.back(), {1, 0, 2, 0, 1, 0});
    }
    Muon optimizer(params, {.ns_steps = 5});
    const Trace trace;
    optimizer.step();
    return trace.records().size();
  };
  EXPECT_EQ(launches(1), 1u + 1 + 5 * 4 + 1);  // schedule, momentum, products, apply
  EXPECT_EQ(launches(3), launches(1));
}

TEST(Muon, SplitKeepsTheEndsAndTheVectorsForAdamW) {
  Sequential net = small_net(kCpu);
  const MuonSplit split = split_for_muon(net);
  const auto names = [](const std::vector<NamedTensor>& all) {
    std::vector<std::string> names;
    for (const NamedTensor& p : all) names.push_back(p.name);
    return names;
  };
  EXPECT_EQ(names(split.hidden), (std::vector<std::string>{"2.weight"}));
  EXPECT_EQ(names(split.others),
            (std::vector<std::string>{"0.weight", "0.bias", "1.weight", "1.bias", "2.bias",
                                      "4.weight", "4.bias"}));
  Sequential one(Linear(2, 2));  // without an inside all goes to AdamW
  EXPECT_TRUE(split_for_muon(one).hidden.empty());
  EXPECT_EQ(Muon(split_for_muon(one), {}).parameters().size(), 2u);
}

// AdamW's part of the rate, which no rate of the state tells; alone, Muon takes its rates from
// there.
TEST(Muon, SettingsNameTheRateThatAdamWsDependsOn) {
  Sequential net = small_net(kCpu);
  const auto of_both = [&](double lr) { return Muon(split_for_muon(net), {.lr = lr}).settings(); };
  EXPECT_TRUE(of_both(0.02).ends_with(", weight_decay 0.01, lr 0.02")) << of_both(0.02);
  const auto alone = [&](double lr) {
    return Muon(split_for_muon(net).hidden, {.lr = lr}).settings();
  };
  EXPECT_EQ(alone(0.02), alone(0.01));
}

TEST(Muon, Errors) {
  const auto invalid = ErrorCode::invalid_argument;
  const Tensor w = parameter({1, 2, 3, 4}, {2, 2}, DType::f32, kCpu);
  const Tensor bias = parameter({1}, DType::f32, kCpu);
  EXPECT_ERROR(Muon({w, bias}), invalid, "muon: expected parameters of rank 2 or more, but 1 is",
               "f32[1]@cpu", "AdamW");
  EXPECT_ERROR(Muon({w}, {.momentum = 1}), invalid, "momentum");
  EXPECT_ERROR(Muon({w}, {.weight_decay = -1}), invalid, "weight_decay");
  EXPECT_ERROR(Muon({w}, {.eps = 0}), invalid, "eps");
  EXPECT_ERROR(Muon({w}, {.ns_steps = 0}), invalid, "ns_steps must be 1 to 99, got 0");
}

}  // namespace
}  // namespace gradus::nn
