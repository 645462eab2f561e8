#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/claims.h"
#include "tests/support/expect_error.h"
#include "tests/support/named_slip.h"

namespace gradus::explain {
namespace {

using namespace test;

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const std::string_view name : kLayerNames) {
    Setting setting{.layer = parse_layer(name)};
    all.push_back(setting);
    setting.training = false;
    if (setting.has_running()) all.push_back(setting);
  }
  return all;
}

TEST(Diagnosis, ARightGradientIsRight) {
  for (const Setting& setting : settings()) {
    SCOPED_TRACE(std::string(to_string(setting.layer)));
    for (const DType dtype : {DType::f64, DType::f32, DType::f16}) {
      const Diagnosis d =
          diagnose(setting, [&](const Inputs& in) { return library_claim(setting, in, dtype); });
      EXPECT_TRUE(d.right()) << d.text();
      EXPECT_TRUE(d.has_power()) << d.text();
      EXPECT_EQ(d.findings.size(), !setting.is_norm() ? 1U : setting.has_mean() ? 3U : 2U);
    }
  }
}

// What is not finite would make any difference pass; a transposed dx has as many values.
TEST(Diagnosis, RefusesWhatNothingCanBeToldFrom) {
  const Setting setting{.layer = Layer::batch_norm};
  const Inputs inputs = draw_inputs(setting, {4, 6, 5}, 0);
  const Claim claim = library_claim(setting, inputs);
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    Inputs with_bad = inputs;
    with_bad.dy = inputs.dy.clone();
    with_bad.dy.slice(0, 3, 4).fill_(bad);
    EXPECT_THROW(diagnose(setting, with_bad, claim), Error);
  }
  Setting no_eps = setting;
  no_eps.eps = 0;
  Inputs constant = inputs;
  constant.x = Tensor::ones({4, 6, 5}, {.dtype = DType::f64});
  EXPECT_THROW(diagnose(no_eps, constant, claim), Error);
  EXPECT_THROW(diagnose(setting, inputs, {.dx = claim.dx.reshape({5, 6, 4})}), Error);
}

// Neither the input that it proposes nor its time grows with a window wider than any tensor.
TEST(Diagnosis, AWindowOfAnyWidth) {
  for (const int64_t size : {int64_t{1000}, int64_t{1} << 60}) {
    const Setting setting{.layer = Layer::local_response_norm, .size = size};
    const Inputs inputs = draw_inputs(setting, {3, 4, 2}, 0);
    const Diagnosis d = diagnose(setting, inputs, library_claim(setting, inputs));
    EXPECT_TRUE(d.right()) << d.text();
  }
}

// dx = gamma·rstd·(dy - mean(dy) - xhat·mean(dy·xhat)), as published for GroupNorm, and the same of
// RMSNorm: right only where gamma is constant over the set.
Claim gamma_pulled_out(const Setting& setting, const Inputs& in) {
  Inputs plain = in;
  plain.gamma = Tensor::ones(in.gamma.shape(), {.dtype = DType::f64});
  const Values dx = run_library(setting, plain).dx.to_vector<double>(),
               gamma = in.gamma.to_vector<double>();
  const Layout layout = layout_of(setting, in.x.shape());
  Values scaled(dx.size());
  for (size_t i = 0; i < dx.size(); ++i)
    scaled[i] = gamma[static_cast<size_t>(layout.param[i])] * dx[i];
  return {.dx = Tensor::from_vector(scaled, in.x.shape())};
}

TEST(Diagnosis, ThePublishedSlipsAreNamed) {
  for (const Layer layer : {Layer::group_norm, Layer::rms_norm, Layer::layer_norm}) {
    const Setting setting{.layer = layer};
    const Diagnosis d =
        diagnose(setting, [&](const Inputs& in) { return gamma_pulled_out(setting, in); });
    ASSERT_EQ(d.findings.size(), 1U);
    EXPECT_EQ(d.findings[0].slip, Slip::gamma_outside) << d.text();
    EXPECT_TRUE(contains(d.text(), "gamma was pulled out of m")) << d.text();
    EXPECT_GT(d.findings[0].error, 0.1);
  }
  for (const Layer layer : {Layer::batch_norm, Layer::instance_norm}) {
    const Setting setting{.layer = layer};
    EXPECT_TRUE(
        diagnose(setting, [&](const Inputs& in) { return gamma_pulled_out(setting, in); }).right());
  }
}

// With gamma = 1 the published check passed: the diagnosis says that it could not have failed.
TEST(Diagnosis, SaysWhatAConstantGammaHides) {
  const Setting setting{.layer = Layer::group_norm};
  Inputs in = draw_inputs(setting, {2, 4, 3}, 0);
  in.gamma = Tensor::ones({4}, {.dtype = DType::f64});
  const Diagnosis d = diagnose(setting, in, gamma_pulled_out(setting, in));
  EXPECT_TRUE(d.right());
  EXPECT_FALSE(d.has_power());
  EXPECT_NE(std::ranges::find(d.blind, Slip::gamma_outside), d.blind.end());
  EXPECT_TRUE(contains(d.text(), "This input cannot tell")) << d.text();
  EXPECT_TRUE(contains(d.text(), "gamma is the same everywhere")) << d.text();
  const Diagnosis again = diagnose(setting, d.proposal, gamma_pulled_out(setting, d.proposal));
  EXPECT_EQ(again.findings[0].slip, Slip::gamma_outside);
}

TEST(Diagnosis, SaysWhatAnUpstreamOfOnesHides) {
  const Setting setting{.layer = Layer::batch_norm};
  Inputs in = draw_inputs(setting, {2, 3, 2, 2}, 0);
  in.dy = Tensor::ones(in.x.shape(), {.dtype = DType::f64});
  const Diagnosis d = diagnose(setting, in, library_claim(setting, in));
  EXPECT_TRUE(d.right());
  for (const Slip slip : {Slip::projection_missing, Slip::gamma_missing})
    EXPECT_NE(std::ranges::find(d.blind, slip), d.blind.end()) << to_string(slip);
  EXPECT_TRUE(contains(d.text(), "dy is the same everywhere")) << d.text();
}

TEST(Diagnosis, SaysWhatOneSampleAndOneElementHide) {
  const Setting setting{.layer = Layer::group_norm};
  const Inputs in = draw_inputs(setting, {1, 4, 3}, 0);
  const Diagnosis d = diagnose(setting, in, library_claim(setting, in));
  EXPECT_TRUE(d.right());
  EXPECT_NE(std::ranges::find(d.blind, Slip::batch_mean), d.blind.end());
  EXPECT_TRUE(contains(d.text(), "a single sample")) << d.text();
  EXPECT_GE(d.proposal.x.size(0), 2);
  const Setting instance{.layer = Layer::instance_norm};
  const Inputs small = draw_inputs(instance, {2, 3}, 0);
  EXPECT_TRUE(
      contains(diagnose(instance, small, library_claim(instance, small)).text(), "one element"));
}

// One error on top of the right gradient of rms_norm or layer_norm.
TEST(Diagnosis, NamesSlipsBeyondTheMutants) {
  const Setting setting{.layer = Layer::layer_norm};
  const Inputs in = draw_inputs(setting, {3, 6}, 0);
  const Claim right = library_claim(setting, in);
  const auto finding = [&](Claim claim) { return diagnose(setting, in, claim).findings.front(); };
  EXPECT_EQ(finding({.dx = scaled(right.dx, -1)}).slip, Slip::wrong_sign);
  EXPECT_EQ(finding({.dx = scaled(right.dx, 6)}).slip, Slip::wrong_scale);
  EXPECT_TRUE(contains(finding({.dx = scaled(right.dx, 6)}).text, "which is m"));
  EXPECT_EQ(finding({.dgamma = scaled(right.dgamma, 1.0 / 3)}).slip, Slip::batch_mean);
  EXPECT_EQ(finding({.dgamma = scaled(right.dgamma, -1)}).slip, Slip::wrong_sign);
  EXPECT_EQ(finding({.dgamma = scaled(right.dgamma, 5)}).slip, Slip::wrong_scale);
  EXPECT_EQ(finding({.dgamma = right.dbeta}).slip, Slip::swapped);
  EXPECT_EQ(finding({.dbeta = right.dgamma}).slip, Slip::swapped);
  EXPECT_EQ(finding({.dx = scaled(right.dx, NAN)}).slip, Slip::not_finite);
  EXPECT_EQ(finding({.dbeta = scaled(right.dbeta, INFINITY)}).slip, Slip::not_finite);
  EXPECT_EQ(finding({.dx = in.x}).slip, Slip::unknown);
  EXPECT_EQ(finding({.dbeta = in.gamma}).slip, Slip::unknown);
  // dbeta before it is summed over the batch is dy itself.
  EXPECT_EQ(finding({.dbeta = in.dy}).slip, Slip::batch_sum_forgotten);
  // Two slips at once.
  const Claim outside = gamma_pulled_out(setting, in);
  EXPECT_EQ(finding({.dx = scaled(outside.dx, -1)}).slip, Slip::gamma_outside);
  EXPECT_TRUE(contains(finding({.dx = scaled(outside.dx, -1)}).text, "; and the sign"));
}

// Each statistic that is not the forward's, by the forward of another setting.
TEST(Diagnosis, NamesWrongStatistics) {
  const Setting setting{.layer = Layer::layer_norm, .eps = 0.1};
  const Inputs in = draw_inputs(setting, {3, 6}, 0);
  const auto slip = [&](const Setting& wrong) {
    return diagnose(setting, in, {.dx = library_claim(wrong, in).dx}).findings.front().slip;
  };
  Setting without = setting;
  without.eps = 0;
  EXPECT_EQ(slip(without), Slip::eps_missing);
  EXPECT_EQ(slip(setting), Slip::none);
  const Setting training{.layer = Layer::batch_norm};
  Setting evaluation = training;
  evaluation.training = false;
  const Inputs batch = draw_inputs(training, {4, 3, 2}, 0);
  const auto slip_of = [&](const Setting& right, const Setting& wrong) {
    return diagnose(right, batch, {.dx = library_claim(wrong, batch).dx}).findings.front().slip;
  };
  EXPECT_EQ(slip_of(evaluation, training), Slip::training_formula);
  EXPECT_EQ(slip_of(evaluation, evaluation), Slip::none);
  // rstd of the running variance times d: the whole formula of evaluation, statistics included.
  EXPECT_EQ(slip_of(training, evaluation), Slip::evaluation_formula);
}

TEST(Diagnosis, NamesAnotherEps) {
  for (const Layer layer : {Layer::layer_norm, Layer::rms_norm, Layer::group_norm}) {
    const Setting setting{.layer = layer};
    const Inputs in =
        draw_inputs(setting, layer == Layer::group_norm ? Shape{3, 4, 3} : Shape{4, 6}, 0);
    const auto finding = [&](double eps, DType dtype) {
      Setting other = setting;
      other.eps = eps;
      return diagnose(setting, in, library_claim(other, in, dtype)).findings;
    };
    for (const DType dtype : {DType::f64, DType::f32}) {
      const std::vector<Finding> larger = finding(1e-2, dtype);
      for (const size_t k : {0, 1}) EXPECT_EQ(larger[k].slip, Slip::other_eps) << larger[k].text;
      EXPECT_TRUE(contains(larger[0].text, "another eps than 1e-05 was used in rstd, about 0.01 "))
          << larger[0].text;
    }
    const Finding smaller = finding(1e-8, DType::f64)[0];
    EXPECT_EQ(smaller.slip, Slip::other_eps) << smaller.text;
    EXPECT_TRUE(contains(smaller.text, "about 1e-08 ")) << smaller.text;
    const Finding none = finding(0, DType::f64)[0];
    EXPECT_EQ(none.slip, Slip::eps_missing) << none.text;
    EXPECT_TRUE(contains(none.text, "or another one than 1e-05 was used")) << none.text;
    // One set: any rstd would be some eps's.
    const Inputs one = draw_inputs(setting, {1, layer == Layer::group_norm ? 2 : 6, 3}, 0);
    Setting single = setting, other;
    single.groups = 1;
    single.axes = layer == Layer::group_norm ? 0 : 2;
    other = single;
    other.eps = 1e-2;
    EXPECT_EQ(diagnose(single, one, {.dx = library_claim(other, one).dx}).findings[0].slip,
              Slip::stale_statistics);
  }
}

// rstd·(d - m1·[has_mean or extra] - xhat·m2·rstd^power·[projection]) of plain loops.
Claim written_out(const Setting& setting, const Inputs& in, int power, bool extra,
                  bool projection = true) {
  const Layout layout = layout_of(setting, in.x.shape());
  const Values x = in.x.to_vector<double>(), dy = in.dy.to_vector<double>(),
               gamma = in.gamma.to_vector<double>();
  const auto sets = static_cast<size_t>(layout.sets);
  const auto m = static_cast<double>(layout.m);
  const auto set = [&](size_t i) { return static_cast<size_t>(layout.set[i]); };
  const auto d = [&](size_t i) { return dy[i] * gamma[static_cast<size_t>(layout.param[i])]; };
  Values mu(sets), var(sets), m1(sets), m2(sets), dx(x.size());
  for (size_t i = 0; i < x.size() && setting.has_mean(); ++i) mu[set(i)] += x[i] / m;
  for (size_t i = 0; i < x.size(); ++i)
    var[set(i)] += (x[i] - mu[set(i)]) * (x[i] - mu[set(i)]) / m;
  const auto rstd = [&](size_t i) { return 1 / std::sqrt(var[set(i)] + setting.eps); };
  const auto xhat = [&](size_t i) { return (x[i] - mu[set(i)]) * rstd(i); };
  for (size_t i = 0; i < x.size(); ++i) {
    if (setting.has_mean() || extra) m1[set(i)] += d(i) / m;
    if (projection) m2[set(i)] += d(i) * xhat(i) / m;
  }
  for (size_t i = 0; i < x.size(); ++i) {
    dx[i] = rstd(i) * (d(i) - m1[set(i)] - xhat(i) * m2[set(i)] * std::pow(rstd(i), power));
  }
  return {.dx = Tensor::from_vector(dx, in.x.shape())};
}

TEST(Diagnosis, NamesAWrongPowerOfRstd) {
  for (const Setting& setting : settings()) {
    if (!setting.is_norm() || setting.is_evaluation()) continue;
    SCOPED_TRACE(std::string(to_string(setting.layer)));
    const Inputs in = draw_inputs(setting, {3, 4, 5}, 0);
    const auto finding = [&](int power) {
      return diagnose(setting, in, written_out(setting, in, power, false)).findings[0];
    };
    EXPECT_EQ(finding(0).slip, Slip::none) << finding(0).text;
    EXPECT_EQ(finding(-1).slip, Slip::rstd_missing) << finding(-1).text;
    EXPECT_TRUE(finding(-1).text.starts_with("a factor rstd is missing in the projection"));
    EXPECT_EQ(finding(-2).slip, Slip::rstd_missing) << finding(-2).text;
    EXPECT_TRUE(finding(-2).text.starts_with("two factors rstd are missing in the projection"));
    EXPECT_EQ(finding(-3).slip, Slip::rstd_missing) << finding(-3).text;
    EXPECT_TRUE(finding(-3).text.starts_with("three factors rstd are missing in the projection"));
    EXPECT_EQ(finding(1).slip, Slip::rstd_extra) << finding(1).text;
    EXPECT_EQ(finding(2).slip, Slip::rstd_extra) << finding(2).text;
    EXPECT_TRUE(finding(2).text.starts_with("there are two factors rstd too much"));
    for (const int power : {-3, -2, -1, 1, 2}) EXPECT_TRUE(finding(power).also.empty());
  }
}

TEST(Diagnosis, NamesAMeanThatRmsNormDoesNotTakeAway) {
  const Setting setting{.layer = Layer::rms_norm};
  const Inputs in = draw_inputs(setting, {3, 5}, 0);
  const Finding found = diagnose(setting, in, written_out(setting, in, 0, true)).findings[0];
  EXPECT_EQ(found.slip, Slip::mean_extra) << found.text;
  EXPECT_EQ(found.text, "rms_norm has no m1: it takes no mean away");
  EXPECT_TRUE(found.also.empty());
}

// Of a gradient that no slip gives: which factors of {d, 1, xhat} are wrong.
TEST(Diagnosis, SaysWhichPartIsWrongInEachSet) {
  for (const Layer layer : {Layer::layer_norm, Layer::rms_norm}) {
    const Setting setting{.layer = layer};
    const Inputs in = draw_inputs(setting, {3, 6}, 0);
    const Values right = written_out(setting, in, 0, false).dx.to_vector<double>(),
                 direct = written_out(setting, in, 0, false, false).dx.to_vector<double>();
    const auto text = [&](auto value) {
      Values dx(right.size());
      for (size_t i = 0; i < dx.size(); ++i) dx[i] = value(i);
      const Finding found =
          diagnose(setting, in, {.dx = Tensor::from_vector(dx, in.x.shape())}).findings[0];
      EXPECT_EQ(found.slip, Slip::unknown) << found.text;
      return found.text;
    };
    const auto share = [](size_t i) { return 0.1 * static_cast<double>(i / 6 * (i / 6) + 2); };
    const std::string projection =
        text([&](size_t i) { return direct[i] + share(i) * (right[i] - direct[i]); });
    const std::string letters =
        setting.has_mean()
            ? "a·d + b + c·xhat in each set (d = dy·gamma), but c is wrong and not the same in all "
              "sets; right: a = rstd, b = -rstd·m1 and c = -rstd·m2; look at m2 and rstd"
            : "a·d + c·xhat in each set (d = dy·gamma), but c is wrong and not the same in all "
              "sets; right: a = rstd and c = -rstd·m2; look at m2 and rstd";
    EXPECT_EQ(projection, "none of the usual slips gives it; your dx is " + letters);
    const std::string shifted = text([&](size_t i) { return right[i] + share(i); });
    EXPECT_TRUE(contains(shifted, "but b is wrong")) << shifted;
    EXPECT_EQ(contains(shifted, "b = 0 and"), !setting.has_mean()) << shifted;
    const Values dy = in.dy.to_vector<double>(), gamma = in.gamma.to_vector<double>();
    const std::string same = text([&](size_t i) { return 0.5 * dy[i] * gamma[i % 6] - 0.25; });
    EXPECT_TRUE(contains(same, "your dx is 0.5·d - 0.25, with the same numbers in all sets; "))
        << same;
    EXPECT_TRUE(contains(same, "; right is a·d + b + c·xhat with a = rstd, ")) << same;
    EXPECT_TRUE(
        contains(text([&](size_t i) { return right[i] + 0.01 * static_cast<double>(i % 7); }),
                 " sets it is no sum a·d + b + c·xhat "));
  }
}

// Two slips of which neither is named: the fit in words, without a -0.
TEST(Diagnosis, SaysWhatTheFitSuggests) {
  const Setting setting{.layer = Layer::rms_norm};
  const Inputs in = draw_inputs(setting, {3, 5}, 0);
  Setting other = setting;
  other.eps = 1e-3;
  const Diagnosis found = diagnose(setting, in, written_out(other, in, 0, false, false));
  EXPECT_EQ(found.findings[0].slip, Slip::unknown) << found.text();
  EXPECT_TRUE(contains(found.text(),
                       "It looks as if the projection term were missing, and rstd "
                       "were slightly off."))
      << found.text();
  EXPECT_FALSE(contains(found.text(), "-0.0000") || contains(found.text(), "- 0.0000"));
}

TEST(Diagnosis, ComparesTheSumsOfWhatIsNotSummed) {
  const Setting setting{.layer = Layer::rms_norm};
  const Inputs in = draw_inputs(setting, {3, 5}, 0);
  const Values dgamma = library_claim(setting, in).dgamma.to_vector<double>();
  Values rows(15);  // any rows that add up to it
  for (size_t k = 0; k < 5; ++k) {
    rows[k] = 7;
    rows[5 + k] = dgamma[k];
    rows[10 + k] = -7;
  }
  const auto text = [&] {
    return diagnose(setting, in, {.dgamma = Tensor::from_vector(rows, {3, 5})}).text();
  };
  EXPECT_TRUE(contains(text(),
                       "one value per row: it must be summed over the rows; that sum is "
                       "right.\n  Summed, its largest difference is "))
      << text();
  rows[0] += 0.25;
  EXPECT_TRUE(contains(text(), "not right either.\n  Summed, its largest difference is 0.25,"))
      << text();
}

TEST(Diagnosis, RefusesWhatDoesNotFit) {
  const Setting setting{.layer = Layer::rms_norm};
  const Inputs in = draw_inputs(setting, {3, 5}, 0);
  EXPECT_ERROR(diagnose(setting, in, Claim{}), ErrorCode::invalid_argument, "nothing is claimed");
  EXPECT_ERROR(diagnose(setting, in, {.dx = in.gamma}), ErrorCode::invalid_argument, "claimed dx",
               "15");
  EXPECT_ERROR(diagnose(setting, in, {.dgamma = in.x.slice(0, 0, 2)}), ErrorCode::invalid_argument,
               "claimed dgamma");
  EXPECT_ERROR(diagnose(setting, in, {.dbeta = in.gamma}), ErrorCode::invalid_argument,
               "dbeta is claimed, but there is no beta");
  EXPECT_ERROR(diagnose(setting, {.x = in.x}, {.dx = in.x}), ErrorCode::invalid_argument,
               "needs x and dy");
  const Setting softmax{.layer = Layer::softmax2d};
  const Inputs image = draw_inputs(softmax, {1, 4, 3}, 0);
  EXPECT_ERROR(diagnose(softmax, image, {.dx = image.x, .dgamma = image.x}),
               ErrorCode::invalid_argument, "dgamma is claimed, but there is no gamma");
  EXPECT_ERROR(diagnose({.layer = Layer::batch_norm, .training = false}, {.x = in.x, .dy = in.dy},
                        {.dx = in.x}),
               ErrorCode::invalid_argument, "needs running_mean and running_var");
}

}  // namespace
}  // namespace gradus::explain
