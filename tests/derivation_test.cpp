#include "autograd/explain/derivation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/explain/library.h"
#include "autograd/ops/arithmetic.h"
#include "tests/support/expect_error.h"
#include "tests/support/largest.h"

namespace gradus::explain {
namespace {

using test::largest;

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
        EXPECT_EQ(invariant.verdict(), Verdict::holds)
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

// By its values: where all are equal, or a set has one element, it may be pulled out.
TEST(Derivation, NotesAreOfTheGammaThatIsThere) {
  for (const Layer layer : {Layer::layer_norm, Layer::rms_norm}) {
    SCOPED_TRACE(to_string(layer));
    const Setting setting{.layer = layer};
    const auto note = [&](const Inputs& in) { return derive(setting, in).notes.back(); };
    const Inputs drawn = draw_inputs(setting, {3, 5}, 0);
    Inputs ones = drawn;
    ones.gamma = drawn.gamma * 0.0 + 1.0;
    const std::string outside = layer == Layer::rms_norm
                                    ? "out of m2: dx = gamma·rstd·(dy - xhat·mean(dy·xhat))."
                                    : "out of m1 and m2: dx = gamma·rstd·(dy - mean(dy) - "
                                      "xhat·mean(dy·xhat)).";
    EXPECT_TRUE(note(drawn).ends_with("is wrong here.")) << note(drawn);
    for (const Inputs& in : {ones, draw_inputs(setting, {3, 1}, 0)}) {
      EXPECT_TRUE(note(in).starts_with("gamma is one number")) << note(in);
      EXPECT_NE(note(in).find(outside), std::string::npos) << note(in);
    }
  }
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
  in.running_var = Tensor::from_vector<double>({1, 2, -1}, {3});
  for (const double eps : {0.0, 1e-5, 1.0}) {
    evaluation.eps = eps;
    EXPECT_ERROR(check_variance(evaluation, in), ErrorCode::invalid_argument,
                 "running_var holds -1, and eps is ");
  }
  evaluation.eps = 1.5;
  EXPECT_NO_THROW(check_variance(evaluation, in));
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
