// What a derivation says of its differences: by what rounding may make of the numbers.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "autograd/explain/derivation.h"
#include "autograd/ops/arithmetic.h"
#include "tests/support/largest.h"

namespace gradus::explain {
namespace {

using test::largest;

TEST(DerivationBounds, InvariantsHoldForSmallSpreads) {
  const Setting setting{.layer = Layer::layer_norm, .axes = 1};
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Inputs in = draw_inputs(setting, {8, 1, 1, 2}, seed);
    in.x = in.x.clone().add_(Tensor::full({1}, static_cast<double>(seed), in.x.options()));
    for (const Invariant& one : derive(setting, in).invariants)
      EXPECT_EQ(one.verdict(), Verdict::holds)
          << seed << ": " << one.value << ", at most " << one.bound;
  }
}

// Of a column whose terms cancel, beside others.
TEST(DerivationBounds, TheScalingOfColumnsHoldsForEach) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    for (const int64_t c : {1, 2, 5}) {
      for (const double beta : {0.0, 0.75, 5.0}) {
        const Setting setting{.layer = Layer::local_response_norm, .size = 3, .beta = beta};
        const Inputs in = draw_inputs(setting, {2, c, 4}, seed);
        const Invariant one = derive(setting, in).invariants.at(0);
        EXPECT_EQ(one.verdict(), Verdict::holds)
            << seed << ": " << one.value << ", at most " << one.bound;
      }
    }
  }
}

// Features of very different sizes, and a set of one value that f64 rounds.
TEST(DerivationBounds, DifferencesAreTakenAtTheSizeOfEachSet) {
  for (const Layer layer : {Layer::batch_norm, Layer::instance_norm}) {
    for (const bool training : {true, false}) {
      const Setting setting{.layer = layer, .training = training};
      Inputs in = draw_inputs(setting, {3, 3, 4}, 0);
      std::vector<double> x = in.x.to_vector<double>();
      const double sizes[] = {1e-3, 1, 1e6};
      for (size_t i = 0; i < x.size(); ++i) x[i] *= sizes[i / 4 % 3];
      in.x = Tensor::from_vector(x, {3, 3, 4});
      for (const Gradient& one : derive(setting, in).gradients)
        EXPECT_EQ(one.verdict(), Verdict::holds) << one.name << (training ? "" : " in evaluation");
    }
  }
  const Setting setting{.layer = Layer::layer_norm, .eps = 1};
  const Tensor x = Tensor::full({2, 3}, 0.1, {.dtype = DType::f64});
  for (const Gradient& one : derive(setting, {.x = x}).gradients)
    EXPECT_EQ(one.verdict(), Verdict::holds) << one.name;
  // Values that lie close together beside where y bends, and far from it.
  struct Row {
    Layer layer;
    double eps;
    std::vector<double> x;
  };
  const double close = 0.1 + 0.2, same = 1e-5;
  for (const Row& row : {Row{Layer::rms_norm, 1e-5, {0.3, close}},
                         {Layer::rms_norm, 1e-12, {same, same, same}},
                         {Layer::rms_norm, 1e-5, {1e-8, 0.001, -0.001}},
                         {Layer::layer_norm, 1e-5, {0.3, close}},
                         {Layer::layer_norm, 1e-10, {0.3, 0.3, 0.3}},
                         {Layer::softmax2d, 0, {0.3, close}},
                         {Layer::softmax2d, 0, {-1e4, 0, 0.5}},
                         {Layer::softmax2d, 0, {-1e9, 0, 0.5}},
                         {Layer::softmax2d, 0, {-1e30, 0, 0.5}},
                         {Layer::local_response_norm, 0, {0.3, close}}}) {
    const Setting of_row{.layer = row.layer, .eps = row.eps};
    const Shape shape = {1, std::ssize(row.x), 1, 1};
    const Derivation d = derive(of_row, {.x = Tensor::from_vector(row.x, shape)});
    const double scale = largest(d.step(of_row.is_norm() ? "direct" : "dx").value);
    SCOPED_TRACE(concat(row.layer, " ", row.x[0]));
    EXPECT_LE(d.gradients[0].difference, 1e-6 * scale);
    EXPECT_EQ(d.gradients[0].verdict(), Verdict::holds) << d.gradients[0].bound;
    EXPECT_LE(d.gradients[0].bound, 1e-5 * scale);
  }
  // Of parameters, too.
  const Derivation parameters =
      derive({.layer = Layer::layer_norm}, {.x = Tensor::from_vector<double>({1, 3, 2, 5}, {2, 2}),
                                            .dy = {},
                                            .gamma = Tensor::from_vector<double>({0.3, close}, {2}),
                                            .beta = Tensor::full({2}, 1e6, {.dtype = DType::f64})});
  for (const Gradient& one : parameters.gradients)
    EXPECT_EQ(one.verdict(), Verdict::holds) << one.name << one.difference;
}

void expect_all_hold(const Derivation& d) {
  for (const Step& one : d.steps) EXPECT_EQ(one.verdict(), Verdict::holds) << one.name;
  for (const Gradient& one : d.gradients) EXPECT_EQ(one.verdict(), Verdict::holds) << one.name;
  for (const Invariant& one : d.invariants) EXPECT_EQ(one.verdict(), Verdict::holds) << one.text;
}

// What x loses by lying far from 0 is no fault, nor is what underflows; and of small gradients the
// bounds are as small.
TEST(DerivationBounds, BoundsAreThoseOfTheNumbers) {
  for (const std::string_view name : kLayerNames) {
    const Setting setting{.layer = parse_layer(name)};
    const Inputs in = draw_inputs(setting, default_shape(setting), 3);
    for (const double offset : {0.0, 1e4, 1e7, 1e9}) {
      for (const double scale : {1e-6, 1e-2, 1.0, 1e6}) {
        SCOPED_TRACE(concat(name, " + ", offset, ", times ", scale));
        Inputs moved = in;
        moved.x = (in.x + offset) * scale;
        moved.dy = in.dy * 1e-8;
        const Derivation d = derive(setting, moved);
        // f64 moves x by no less than what bends y.
        const bool lost = setting.layer == Layer::softmax2d && offset * scale > 1e14;
        if (lost) {
          EXPECT_EQ(d.gradients[0].verdict(), Verdict::unknown);
          continue;
        }
        expect_all_hold(d);
        const bool saturated = setting.layer == Layer::softmax2d && scale > 1;  // dx is 0
        if (offset > 0 || saturated) continue;
        for (const Step& one : d.steps)
          EXPECT_LE(one.bound, 1e-12 * largest(one.value)) << one.name;
        for (const Gradient& one : d.gradients)
          EXPECT_LE(one.bound, 1e-5 * largest(one.value)) << one.name;
      }
    }
  }
  const Setting single{.layer = Layer::rms_norm, .axes = 1};  // rows of one value
  expect_all_hold(derive(single, draw_inputs(single, {1, 8, 1, 1}, 0)));
  const Setting close{.layer = Layer::layer_norm};
  expect_all_hold(derive(
      close, {.x = Tensor::from_vector<double>({1, 2, 3, 6, 2, 2.5, 7, 1}, {2, 4}) * 0.01 + 1e7}));
  const Setting loud{.layer = Layer::local_response_norm, .alpha = 1e300};
  const Derivation damped = derive(loud, draw_inputs(loud, default_shape(loud), kExampleSeed));
  for (const Step& one : damped.steps) EXPECT_EQ(one.verdict(), Verdict::holds) << one.name;
  for (const Invariant& one : damped.invariants) EXPECT_EQ(one.verdict(), Verdict::holds);
  EXPECT_EQ(damped.gradients[0].verdict(), Verdict::unknown) << "direct·x/denom underflows";
}

// A dy whose terms overflow: what is infinite proves nothing, as its bound is infinite, too.
TEST(DerivationBounds, WhatOverflowsDoesNotHold) {
  for (const Layer layer : {Layer::layer_norm, Layer::rms_norm}) {
    const Setting setting{.layer = layer};
    Inputs in = draw_inputs(setting, {2, 4, 3}, 0);
    in.dy = Tensor::full({2, 4, 3}, 1.7e308, {.dtype = DType::f64});
    const std::vector<Invariant> all = derive(setting, in).invariants;
    EXPECT_NE(all.back().verdict(), Verdict::holds)
        << all.back().value << ", at most " << all.back().bound;
  }
}

// One row of equal values without eps: its NaN is not lost among the rows that are right.
TEST(DerivationBounds, NanIsNeitherEqualNorDoesItHold) {
  const Setting setting{.layer = Layer::layer_norm, .eps = 0};
  Inputs in = draw_inputs(setting, {3, 4}, 0);
  std::vector<double> x = in.x.to_vector<double>();
  std::fill_n(x.begin(), 4, 1.0);
  in.x = Tensor::from_vector(x, {3, 4});
  const Derivation d = derive(setting, in);
  for (const char* name : {"y", "dx", "dgamma"})
    EXPECT_TRUE(std::isnan(d.step(name).difference)) << name;
  for (const Gradient& one : d.gradients) EXPECT_TRUE(std::isnan(one.difference)) << one.name;
  for (const Invariant& one : d.invariants)
    EXPECT_EQ(one.verdict(), Verdict::not_finite) << one.text;
}

Tensor with_change(const Tensor& gradient, double change) {
  std::vector<double> values = gradient.to_vector<double>();
  values.back() += change;
  return Tensor::from_vector(values, gradient.shape());
}

// Far from 0, too, as far as the numbers say anything.
TEST(DerivationBounds, NoWrongGradientHolds) {
  for (const std::string_view name : kLayerNames) {
    const Setting setting{.layer = parse_layer(name)};
    const Inputs in = draw_inputs(setting, default_shape(setting), 3);
    for (const auto& [offset, width] : {std::pair(0.0, 1e-8), {1e4, 1e-5}, {1e6, 1e-4}}) {
      Inputs moved = in;
      moved.x = in.x + offset;
      for (const Gradient& one : derive(setting, moved).gradients) {
        SCOPED_TRACE(concat(name, " + ", offset, ": ", one.name));
        const auto verdict = [&](const Tensor& gradient) {
          const Worst worst = one.worst(gradient);
          return verdict_of(worst.difference, worst.bound);
        };
        const double size = largest(one.value);
        EXPECT_EQ(verdict(one.value), Verdict::holds);
        EXPECT_EQ(verdict(one.value * 0.0), Verdict::fails);
        EXPECT_EQ(verdict(one.value * -1.0), Verdict::fails);
        EXPECT_EQ(verdict(with_change(one.value, 2 * width * size)), Verdict::fails);
        EXPECT_LE(std::ranges::max(one.bounds), width * size);
      }
    }
  }
}

// A bound as large as the gradient says nothing of it: not of any other, either.
TEST(DerivationBounds, WhatRoundingHidesCannotBeTold) {
  for (const auto& [layer, x] :
       {std::pair(Layer::layer_norm, std::vector<double>{1e14, 1e14 + 1, 1e14 + 3}),
        {Layer::rms_norm, {1e-200, 2e-200, 1e300}},
        {Layer::softmax2d, {1e30, 0, 1}}}) {
    const Setting setting{.layer = layer};
    const Derivation d = derive(setting, {.x = Tensor::from_vector(x, {1, 3, 1, 1})});
    const Gradient& dx = d.gradients.at(0);
    EXPECT_EQ(dx.verdict(), Verdict::unknown) << dx.difference << ", at most " << dx.bound;
    const Worst zeros = dx.worst(dx.value * 0.0);
    EXPECT_EQ(verdict_of(zeros.difference, zeros.bound), Verdict::unknown) << to_string(layer);
  }
}

// Where nothing adds up to a gradient, as of a row that the loss leaves out, it is 0.
TEST(DerivationBounds, ZerosOfNothingAreEqual) {
  for (const std::string_view name : kLayerNames) {
    const Setting setting{.layer = parse_layer(name)};
    Inputs in = draw_inputs(setting, default_shape(setting), 3);
    std::vector<double> dy = in.dy.to_vector<double>();
    std::fill_n(dy.begin(), std::ssize(dy) / 2, 0.0);
    in.dy = Tensor::from_vector(dy, in.dy.shape());
    expect_all_hold(derive(setting, in));
    in.dy = in.dy * 0.0;
    expect_all_hold(derive(setting, in));
  }
}

// What fails is not hidden behind what cannot be told, nor is that behind what holds.
TEST(DerivationBounds, TheWorstIsTheOneThatSaysMost) {
  const auto verdict = [](const std::vector<double>& differences,
                          const std::vector<double>& bounds) {
    const Worst worst = worst_of(differences, bounds);
    return verdict_of(worst.difference, worst.bound);
  };
  EXPECT_EQ(verdict({1000, 5}, {1, INFINITY}), Verdict::fails);
  EXPECT_EQ(verdict({5, 1000}, {INFINITY, 1}), Verdict::fails);
  EXPECT_EQ(verdict({1, 5}, {1, INFINITY}), Verdict::unknown);
  EXPECT_EQ(verdict({1000, NAN, 5}, {1, INFINITY, INFINITY}), Verdict::not_finite);
  EXPECT_EQ(verdict({0, 0}, {0, 1}), Verdict::holds);
  EXPECT_EQ(worst_of({1, 3, 2}, {4, 4, 4}).difference, 3);
  EXPECT_EQ(worst_of({9, 30, 20}, {4, 4, 4}).difference, 30);
}

// Of x whose rounding is as large as it is, or whose squares overflow: neither "holds" nor "fails".
TEST(DerivationBounds, ErrorsWithoutBoundAreInfiniteEverywhere) {
  const Setting setting{.layer = Layer::layer_norm};
  for (const std::vector<double>& x :
       {std::vector<double>{1e17, 1e17 + 32, 1e17 + 64, 1, 2, 3}, {1e160, 3e160, 2e160, 1, 2, 3}}) {
    const Derivation d = derive(setting, {.x = Tensor::from_vector(x, {2, 3})});
    EXPECT_EQ(d.step("dx").verdict(), Verdict::unknown);
    for (const Step& one : d.steps) EXPECT_FALSE(std::isnan(one.bound)) << one.name;
    for (const Invariant& one : d.invariants) {
      EXPECT_EQ(one.verdict(), Verdict::unknown) << one.text << one.value;
      EXPECT_EQ(one.bound, INFINITY) << one.text;
    }
  }
}

// rstd³ overflows, and is not asked for.
TEST(DerivationBounds, WithoutEpsNothingIsLeftOfIt) {
  for (const Layer layer : {Layer::layer_norm, Layer::rms_norm}) {
    const Setting setting{.layer = layer, .eps = 0};
    Inputs in = draw_inputs(setting, {2, 4}, 0);
    in.x = in.x * 1e-110;
    for (const Invariant& one : derive(setting, in).invariants)
      EXPECT_EQ(one.verdict(), Verdict::holds) << one.text << one.value << " " << one.bound;
  }
}

}  // namespace
}  // namespace gradus::explain
