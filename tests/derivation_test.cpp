#include "autograd/explain/derivation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/explain/library.h"
#include "autograd/ops/arithmetic.h"
#include "tests/support/expect_error.h"

namespace gradus::explain {
namespace {

struct Case {
  Setting setting;
  Shape shape;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string_view name : kLayerNames) {
    Setting setting{.layer = parse_layer(name)};
    all.push_back({setting, default_shape(setting)});
    if (!setting.has_running()) continue;
    setting.training = false;
    all.push_back({setting, default_shape(setting)});
  }
  for (const int64_t groups : {1, 3, 6})
    all.push_back({{.layer = Layer::group_norm, .groups = groups}, {3, 6, 2, 2}});
  all.push_back({{.layer = Layer::layer_norm, .axes = 1}, {2, 3, 4}});
  all.push_back({{.layer = Layer::layer_norm}, {2, 3, 2, 2}});
  all.push_back({{.layer = Layer::rms_norm, .axes = 2, .eps = 0.5}, {2, 3, 4}});
  all.push_back({{.layer = Layer::batch_norm, .eps = 0.1}, {7, 2}});
  all.push_back({{.layer = Layer::local_response_norm, .size = 3, .beta = 0.5}, {2, 5}});
  all.push_back({{.layer = Layer::local_response_norm, .size = 9, .k = 2}, {1, 4, 3}});
  all.push_back({{.layer = Layer::softmax2d}, {2, 3, 2, 2}});
  return all;
}

std::string name_of(const Case& one) {
  return concat(one.setting.layer, one.shape, one.setting.training ? "" : " evaluation");
}

double largest(const Tensor& tensor) {
  double largest = 0;
  for (const double value : tensor.to_vector<double>())
    largest = std::max(largest, std::abs(value));
  return largest;
}

TEST(Derivation, TheExamplesShowWhatTheLastTermIsFor) {
  for (const std::string_view name : kLayerNames) {
    SCOPED_TRACE(name);
    const Setting setting{.layer = parse_layer(name)};
    const Derivation d =
        derive(setting, draw_inputs(setting, default_shape(setting), kExampleSeed));
    const bool softmax = setting.layer == Layer::softmax2d;
    const Tensor direct = d.step(softmax ? "weighted" : "direct").value;
    const Tensor rest = softmax             ? d.step("dx").value - direct
                        : setting.is_norm() ? d.step("projection").value
                                            : d.step("neighbours").value;
    EXPECT_GE(largest(rest), 0.2 * largest(direct));
  }
}

TEST(Derivation, EveryStepIsTheLibrarysAndTheFiniteDifferences) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(name_of(one));
    for (const uint64_t seed : {0, 1, 2}) {
      const Derivation d = derive(one.setting, draw_inputs(one.setting, one.shape, seed));
      int compared = 0;
      for (const Step& step : d.steps) {
        EXPECT_LE(step.difference, 1e-13 * (1 + largest(step.value))) << step.name;
        EXPECT_FALSE(step.formula.empty() || step.why.empty()) << step.name;
        compared += !step.against.empty();
      }
      EXPECT_GE(compared, 2);
      EXPECT_GE(d.gradients.size(), one.setting.is_norm() ? 2U : 1U);
      for (const Gradient& gradient : d.gradients) {
        EXPECT_LE(gradient.difference, 1e-8 * (1 + largest(gradient.value))) << gradient.name;
        EXPECT_GT(largest(gradient.value), 0.01) << gradient.name;
      }
      for (const Invariant& invariant : d.invariants)
        EXPECT_TRUE(invariant.holds())
            << invariant.text << ": " << invariant.value << " above " << invariant.bound;
      EXPECT_EQ(d.invariants.empty(), one.setting.is_evaluation());
      EXPECT_FALSE(d.saved.empty() || d.notes.empty());
    }
  }
}

// The steps of each layer, in their order.
TEST(Derivation, NamesItsSteps) {
  const auto names = [](const Setting& setting) {
    std::string text;
    for (const Step& step : derive(setting, draw_inputs(setting, default_shape(setting), 0)).steps)
      text += step.name + " ";
    return text;
  };
  EXPECT_EQ(names({.layer = Layer::batch_norm}),
            "mu var rstd xhat y running_mean running_var d m1 m2 direct mean projection dx dgamma "
            "dbeta ");
  EXPECT_EQ(names({.layer = Layer::batch_norm, .training = false}),
            "mu var rstd xhat y d dx dgamma dbeta ");
  EXPECT_EQ(names({.layer = Layer::rms_norm}), "var rstd xhat y d m2 direct projection dx dgamma ");
  EXPECT_EQ(names({.layer = Layer::local_response_norm}),
            "squares denom power y direct t sum neighbours dx ");
  EXPECT_EQ(names({.layer = Layer::softmax2d}), "max z exp total y weighted sum dx ");
}

TEST(Derivation, TellsTheSets) {
  const auto sets = [](const Setting& setting, const Shape& shape) {
    return derive(setting, draw_inputs(setting, shape, 0)).sets.to_vector<int64_t>();
  };
  using Numbers = std::vector<int64_t>;
  EXPECT_EQ(sets({.layer = Layer::batch_norm}, {2, 2, 2}), (Numbers{0, 0, 1, 1, 0, 0, 1, 1}));
  EXPECT_EQ(sets({.layer = Layer::instance_norm}, {2, 2, 2}), (Numbers{0, 0, 1, 1, 2, 2, 3, 3}));
  EXPECT_EQ(sets({.layer = Layer::instance_norm, .training = false}, {2, 2, 2}),
            (Numbers{0, 0, 1, 1, 0, 0, 1, 1}));
  EXPECT_EQ(sets({.layer = Layer::group_norm, .groups = 2}, {1, 4, 2}),
            (Numbers{0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(sets({.layer = Layer::layer_norm, .axes = 1}, {2, 2, 2}),
            (Numbers{0, 0, 1, 1, 2, 2, 3, 3}));
  EXPECT_EQ(sets({.layer = Layer::softmax2d}, {2, 2, 2}), (Numbers{0, 1, 0, 1, 2, 3, 2, 3}));
  const Setting response{.layer = Layer::local_response_norm, .size = 4};
  EXPECT_EQ(derive(response, draw_inputs(response, {1, 5}, 0)).windows.to_vector<int64_t>(),
            (Numbers{0, 2, 0, 3, 0, 3, 0, 4, 0, 4, 1, 5, 1, 5, 2, 5, 2, 5, 3, 5}));
}

TEST(Derivation, RunningVarianceIsUnbiased) {
  const Setting setting{.layer = Layer::batch_norm};
  Inputs in{.x = Tensor::from_vector<double>({1, 2, 3, 6}, {4, 1})};
  in.running_mean = Tensor::from_vector<double>({0}, {1});
  in.running_var = Tensor::from_vector<double>({1}, {1});
  const Derivation d = derive(setting, in);
  EXPECT_NEAR(d.step("var").value.item<double>(), 3.5, 1e-15);
  EXPECT_NEAR(d.step("running_var").value.item<double>(), 1.3666666666666667, 1e-15);
}

// Of gamma where it stands: in the sums or before them.
TEST(Derivation, NotesAreOfTheSetting) {
  const auto notes = [](const Setting& setting) {
    std::string all;
    for (const std::string& note : derive(setting, draw_inputs(setting, {2, 4, 3}, 0)).notes)
      all += note;
    return all;
  };
  const auto has = [](const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
  };
  for (const int64_t groups : {1, 2, 4}) {
    const std::string text = notes({.layer = Layer::group_norm, .groups = groups});
    EXPECT_EQ(has(text, "gamma varies over a set, so"), groups < 4) << text;
    EXPECT_EQ(has(text, "gamma is one number"), groups == 4) << text;
  }
  EXPECT_TRUE(has(notes({.layer = Layer::batch_norm}), "gamma is one number"));
  const std::string evaluation = notes({.layer = Layer::batch_norm, .training = false});
  EXPECT_TRUE(has(evaluation, "m1 and m2 do not arise"));
  EXPECT_FALSE(has(evaluation, "mean(dy)"));
}

// The example overflows where it says so, and gradus does not.
TEST(Derivation, HalfPrecisionByExample) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(name_of(one));
    const HalfNote note = derive(one.setting, draw_inputs(one.setting, one.shape, 0)).half;
    EXPECT_FALSE(note.text.empty());
    if (one.setting.is_evaluation()) {
      EXPECT_FALSE(note.x.defined());
      continue;
    }
    EXPECT_TRUE(std::isinf(largest(note.squares)));
    EXPECT_LT(largest(note.x), 65504);
    const std::vector<double> right = note.right.to_vector<double>(),
                              wrong = note.wrong.to_vector<double>();
    int apart = 0;
    for (size_t i = 0; i < right.size(); ++i) {
      EXPECT_TRUE(std::isfinite(right[i]));
      apart += !(std::abs(right[i] - wrong[i]) <= 0.02);
    }
    EXPECT_GT(apart, 0) << "the overflow changes y";
  }
}

// Two values that are close: mu has lost digits that rstd enlarges.
// f16 holds no 20000 stretched until ±0.5 is 300, nor is rounding to be stretched.
TEST(Derivation, HalfPrecisionOfAnyInput) {
  for (const Case& one : cases()) {
    if (one.setting.is_evaluation() || one.setting.layer == Layer::softmax2d) continue;
    const Inputs in = draw_inputs(one.setting, one.shape, 1);
    for (const Tensor& x :
         {in.x + 20000.0, in.x * 1e-310, in.x * 1e200, in.x * 0.0 + 3.3, in.x * 1e-3 - 1e5}) {
      Inputs other = in;
      other.x = x;
      const HalfNote half = derive(one.setting, other).half;
      for (const Tensor& values : {half.x, half.right}) {
        EXPECT_LE(largest(values), 65504) << name_of(one);
        for (const double value : values.to_vector<double>())
          EXPECT_TRUE(std::isfinite(value)) << name_of(one);
      }
    }
  }
}

TEST(Derivation, InvariantsHoldForSmallSpreads) {
  const Setting setting{.layer = Layer::layer_norm, .axes = 1};
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Inputs in = draw_inputs(setting, {8, 1, 1, 2}, seed);
    in.x = in.x.clone().add_(Tensor::full({1}, static_cast<double>(seed), in.x.options()));
    for (const Invariant& one : derive(setting, in).invariants)
      EXPECT_TRUE(one.holds()) << seed << ": " << one.value << ", at most " << one.bound;
  }
}

// Of a column whose terms cancel, beside others.
TEST(Derivation, TheScalingOfColumnsHoldsForEach) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    for (const int64_t c : {1, 2, 5}) {
      for (const double beta : {0.0, 0.75, 5.0}) {
        const Setting setting{.layer = Layer::local_response_norm, .size = 3, .beta = beta};
        const Inputs in = draw_inputs(setting, {2, c, 4}, seed);
        const Invariant one = derive(setting, in).invariants.at(0);
        EXPECT_TRUE(one.holds()) << seed << ": " << one.value << ", at most " << one.bound;
      }
    }
  }
}

// Features of very different sizes, and a set of one value that f64 rounds.
TEST(Derivation, DifferencesAreTakenAtTheSizeOfEachSet) {
  for (const Layer layer : {Layer::batch_norm, Layer::instance_norm}) {
    for (const bool training : {true, false}) {
      const Setting setting{.layer = layer, .training = training};
      Inputs in = draw_inputs(setting, {3, 3, 4}, 0);
      std::vector<double> x = in.x.to_vector<double>();
      const double sizes[] = {1e-3, 1, 1e6};
      for (size_t i = 0; i < x.size(); ++i) x[i] *= sizes[i / 4 % 3];
      in.x = Tensor::from_vector(x, {3, 3, 4});
      for (const Gradient& one : derive(setting, in).gradients)
        EXPECT_TRUE(holds(one.difference, one.bound))
            << one.name << (training ? "" : " in evaluation");
    }
  }
  const Setting setting{.layer = Layer::layer_norm, .eps = 1};
  const Tensor x = Tensor::full({2, 3}, 0.1, {.dtype = DType::f64});
  for (const Gradient& one : derive(setting, {.x = x}).gradients)
    EXPECT_TRUE(holds(one.difference, one.bound)) << one.name;
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
    EXPECT_TRUE(holds(d.gradients[0].difference, d.gradients[0].bound)) << d.gradients[0].bound;
    EXPECT_LE(d.gradients[0].bound, 1e-5 * scale);
  }
  // Of parameters, too.
  const Derivation parameters =
      derive({.layer = Layer::layer_norm}, {.x = Tensor::from_vector<double>({1, 3, 2, 5}, {2, 2}),
                                            .dy = {},
                                            .gamma = Tensor::from_vector<double>({0.3, close}, {2}),
                                            .beta = Tensor::full({2}, 1e6, {.dtype = DType::f64})});
  for (const Gradient& one : parameters.gradients)
    EXPECT_TRUE(holds(one.difference, one.bound)) << one.name << one.difference;
}

void expect_all_hold(const Derivation& d) {
  for (const Step& one : d.steps) EXPECT_TRUE(holds(one.difference, one.bound)) << one.name;
  for (const Gradient& one : d.gradients) EXPECT_TRUE(holds(one.difference, one.bound)) << one.name;
  for (const Invariant& one : d.invariants) EXPECT_TRUE(one.holds()) << one.text;
}

// What x loses by lying far from 0 is no fault, nor is what underflows; and of small gradients the
// bounds are as small.
TEST(Derivation, BoundsAreThoseOfTheNumbers) {
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
  expect_all_hold(derive(loud, draw_inputs(loud, default_shape(loud), kExampleSeed)));
}

// A dy whose terms overflow: what is infinite proves nothing, as its bound is infinite, too.
TEST(Derivation, WhatOverflowsDoesNotHold) {
  for (const Layer layer : {Layer::layer_norm, Layer::rms_norm}) {
    const Setting setting{.layer = layer};
    Inputs in = draw_inputs(setting, {2, 4, 3}, 0);
    in.dy = Tensor::full({2, 4, 3}, 1.7e308, {.dtype = DType::f64});
    const std::vector<Invariant> all = derive(setting, in).invariants;
    EXPECT_FALSE(all.back().holds()) << all.back().value << ", at most " << all.back().bound;
  }
}

// One row of equal values without eps: its NaN is not lost among the rows that are right.
TEST(Derivation, NanIsNeitherEqualNorDoesItHold) {
  const Setting setting{.layer = Layer::layer_norm, .eps = 0};
  Inputs in = draw_inputs(setting, {3, 4}, 0);
  std::vector<double> x = in.x.to_vector<double>();
  std::fill_n(x.begin(), 4, 1.0);
  in.x = Tensor::from_vector(x, {3, 4});
  const Derivation d = derive(setting, in);
  for (const char* name : {"y", "dx", "dgamma"})
    EXPECT_TRUE(std::isnan(d.step(name).difference)) << name;
  for (const Gradient& one : d.gradients) EXPECT_TRUE(std::isnan(one.difference)) << one.name;
  for (const Invariant& one : d.invariants) EXPECT_FALSE(one.holds()) << one.text;
}

// Also where rounding gives a variance to equal values, or takes it from others.
TEST(Derivation, NoVarianceAndNoEpsCanBeRefused) {
  const auto check = [](Layer layer, const std::vector<double>& x, double eps) {
    const Setting setting{.layer = layer, .eps = eps};
    check_variance(setting, complete(setting, {.x = Tensor::from_vector(x, {2, 3})}, 0));
  };
  EXPECT_ERROR(check(Layer::layer_norm, {1, 2, 3, 0.1, 0.1, 0.1}, 0), ErrorCode::invalid_argument,
               "the variance of set 1 is 0, and so is eps");
  EXPECT_ERROR(check(Layer::rms_norm, {0, 0, 0, 1, 2, 3}, 0), ErrorCode::invalid_argument,
               "the mean square of set 0 is 0");
  EXPECT_ERROR(check(Layer::layer_norm, {1, 2, 3, 1e-170, 2e-170, 4e-170}, 0),
               ErrorCode::invalid_argument, "the variance of set 1 is 0");
  EXPECT_NO_THROW(check(Layer::rms_norm, {1, 1, 1, 1, 2, 3}, 0));
  EXPECT_NO_THROW(check(Layer::layer_norm, {1, 1, 1, 1, 1, 1}, 1e-5));
  Setting evaluation{.layer = Layer::batch_norm, .eps = 0, .training = false};
  Inputs in = draw_inputs(evaluation, {2, 3}, 0);
  EXPECT_NO_THROW(check_variance(evaluation, in));
  in.running_var = Tensor::from_vector<double>({1, 0, 1}, {3});
  EXPECT_ERROR(check_variance(evaluation, in), ErrorCode::invalid_argument,
               "the variance of set 1 is 0");
}

TEST(Derivation, InputsAreDrawnTheSameAgainAndChecked) {
  const Setting setting{.layer = Layer::group_norm, .groups = 2};
  const Inputs a = draw_inputs(setting, {2, 4, 3}, 5), b = draw_inputs(setting, {2, 4, 3}, 5);
  EXPECT_EQ(a.x.to_vector<double>(), b.x.to_vector<double>());
  EXPECT_NE(a.x.to_vector<double>(), draw_inputs(setting, {2, 4, 3}, 6).x.to_vector<double>());
  EXPECT_FALSE(a.running_mean.defined());
  EXPECT_ERROR(draw_inputs(setting, {2, 3, 3}, 0), ErrorCode::invalid_argument, "group_norm",
               "do not fall into 2 groups");
  EXPECT_ERROR(draw_inputs(setting, {2, 0, 3}, 0), ErrorCode::invalid_argument, "empty");
  const auto draw = [](Layer layer, const Shape& shape) {
    return draw_inputs({.layer = layer}, shape, 0);
  };
  EXPECT_ERROR(draw(Layer::layer_norm, {4}), ErrorCode::invalid_argument,
               "expected x of 2 to 8 axes, got shape [4]");
  EXPECT_ERROR(draw(Layer::softmax2d, {2, 3}), ErrorCode::invalid_argument, "3 to 5 axes");
  EXPECT_ERROR(draw(Layer::batch_norm, {2, 3, 1, 1, 1, 1}), ErrorCode::invalid_argument,
               "2 to 5 axes");
  EXPECT_ERROR(derive(setting, {.x = a.x.to(DType::f32)}), ErrorCode::invalid_argument, "f64");
  EXPECT_ERROR(derive(setting, {.x = a.x, .dy = a.gamma}), ErrorCode::invalid_argument, "dy");
  EXPECT_ERROR(derive(setting, {.x = Tensor::full({2, 4, 3}, NAN, {.dtype = DType::f64})}),
               ErrorCode::invalid_argument, "x holds infinities or NaN");
  EXPECT_ERROR(derive(setting, {.x = a.x, .running_var = a.gamma}), ErrorCode::invalid_argument,
               "has no running_var");
  EXPECT_ERROR(parse_layer("batchnorm"), ErrorCode::invalid_argument, "batch_norm, group_norm");
  EXPECT_ERROR(derive(setting, a).step("mean_square"), ErrorCode::invalid_argument, "no step");
}

}  // namespace
}  // namespace gradus::explain
