// By how much a gradient may be off, and when an input cannot tell.

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/claims.h"
#include "tests/support/expect_error.h"

namespace gradus::explain {
namespace {

using namespace test;

const Finding& finding_of(const Diagnosis& d, std::string_view tensor) {
  const auto found = std::ranges::find(d.findings, tensor, &Finding::tensor);
  EXPECT_NE(found, d.findings.end());
  return *found;
}

// The backward of a norm as a learner would write it in T, with plain sums.
template <class T>
Claim computed_in(const Setting& setting, const Inputs& in) {
  const Layout layout = layout_of(setting, in.x.shape());
  const auto values = [](const Tensor& tensor) {
    const Values all = tensor.to_vector<double>();
    return std::vector<T>(all.begin(), all.end());
  };
  const std::vector<T> x = values(in.x), dy = values(in.dy), gamma = values(in.gamma);
  const auto sets = static_cast<size_t>(layout.sets);
  const T m = static_cast<T>(layout.m), eps = static_cast<T>(setting.eps);
  const auto set = [&](size_t i) { return static_cast<size_t>(layout.set[i]); };
  const auto param = [&](size_t i) { return static_cast<size_t>(layout.param[i]); };
  std::vector<T> mu(sets), var(sets), rstd(sets), m1(sets), m2(sets), dx(x.size());
  if (setting.is_evaluation()) {
    mu = values(in.running_mean);
    var = values(in.running_var);
  } else {
    for (size_t i = 0; i < x.size() && setting.has_mean(); ++i) mu[set(i)] += x[i];
    for (T& mean : mu) mean /= m;
    for (size_t i = 0; i < x.size(); ++i) var[set(i)] += (x[i] - mu[set(i)]) * (x[i] - mu[set(i)]);
    for (T& one : var) one /= m;
  }
  for (size_t k = 0; k < sets; ++k) rstd[k] = T(1) / std::sqrt(var[k] + eps);
  const auto xhat = [&](size_t i) { return (x[i] - mu[set(i)]) * rstd[set(i)]; };
  std::vector<T> dgamma(gamma.size()), dbeta(gamma.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const T d = dy[i] * gamma[param(i)];
    if (setting.has_mean()) m1[set(i)] += d;
    m2[set(i)] += d * xhat(i);
    dgamma[param(i)] += dy[i] * xhat(i);
    dbeta[param(i)] += dy[i];
  }
  for (size_t i = 0; i < x.size(); ++i) {
    const T d = dy[i] * gamma[param(i)];
    const T rest = d - m1[set(i)] / m - xhat(i) * (m2[set(i)] / m);
    dx[i] = rstd[set(i)] * (setting.is_evaluation() ? d : rest);
  }
  Claim claim{.dx = Tensor::from_vector(dx, in.x.shape()),
              .dgamma = Tensor::from_vector(dgamma, layout.per_param)};
  if (setting.has_mean()) claim.dbeta = Tensor::from_vector(dbeta, layout.per_param);
  return claim;
}

std::vector<Setting> norms() {
  std::vector<Setting> all;
  for (const Layer layer : {Layer::batch_norm, Layer::group_norm, Layer::layer_norm,
                            Layer::instance_norm, Layer::rms_norm})
    all.push_back({.layer = layer});
  all.push_back({.layer = Layer::batch_norm, .training = false});
  return all;
}

// As drawn, but x = offset + scale·x and dy = up·dy.
Inputs moved_inputs(const Setting& setting, double offset, double scale, double up,
                    uint64_t seed = 0) {
  Inputs in = draw_inputs(setting, {3, 4, 5}, seed);
  in.x = mapped(in.x, [&](double x, size_t) { return offset + scale * x; });
  in.dy = mapped(in.dy, [&](double dy, size_t) { return up * dy; });
  if (in.running_mean.defined()) {
    in.running_mean = mapped(in.running_mean, [&](double v, size_t) { return offset + scale * v; });
    in.running_var = mapped(in.running_var, [&](double v, size_t) { return scale * scale * v; });
  }
  return in;
}

TEST(DiagnosisBounds, AnotherChannelsGammaHidesNothing) {
  for (const Layer layer : {Layer::batch_norm, Layer::instance_norm}) {
    const Setting setting{.layer = layer};
    Inputs in = draw_inputs(setting, {3, 4, 5}, 0);
    in.gamma = mapped(in.gamma, [](double v, size_t k) { return k == 2 ? 1e6 : v; });
    const Claim right = library_claim(setting, in);
    EXPECT_TRUE(diagnose(setting, in, right).right());
    // Channel 0, whose gradients are of the order of 1.
    const Tensor dx =
        mapped(right.dx, [](double v, size_t i) { return i / 5 % 4 == 0 ? v + 0.01 : v; });
    EXPECT_FALSE(diagnose(setting, in, {.dx = dx}).right());
    in.dy = mapped(in.dy, [](double v, size_t i) { return i / 5 % 4 == 2 ? 1e6 * v : v; });
    Claim off = library_claim(setting, in);
    EXPECT_TRUE(diagnose(setting, in, off).right());
    off.dgamma = mapped(off.dgamma, [](double v, size_t k) { return k == 0 ? v + 0.01 : v; });
    off.dbeta = mapped(off.dbeta, [](double v, size_t k) { return k == 1 ? 1.01 * v : v; });
    const Diagnosis d = diagnose(setting, in, off);
    EXPECT_EQ(finding_of(d, "dx").slip, Slip::none) << d.text();
    EXPECT_NE(finding_of(d, "dgamma").slip, Slip::none) << d.text();
    EXPECT_NE(finding_of(d, "dbeta").slip, Slip::none) << d.text();
  }
}

TEST(DiagnosisBounds, ACoarseClaimDoesNotExcuseAFineOne) {
  const Setting setting{.layer = Layer::group_norm};
  const Inputs in = draw_inputs(setting, {3, 4, 5}, 0);
  Claim claim = library_claim(setting, in);
  claim.dgamma = claim.dgamma.to(DType::f16);
  EXPECT_TRUE(diagnose(setting, in, claim).right());
  claim.dx = mapped(claim.dx, [](double v, size_t i) { return i == 7 ? v + 1e-4 : v; });
  const Diagnosis d = diagnose(setting, in, claim);
  EXPECT_NE(finding_of(d, "dx").slip, Slip::none) << d.text();
  EXPECT_EQ(finding_of(d, "dgamma").slip, Slip::none) << d.text();
}

TEST(DiagnosisBounds, ALongSumMayBeOffByMore) {
  const Setting setting{.layer = Layer::layer_norm};
  const Inputs in = draw_inputs(setting, {2000, 3}, 0);
  const Diagnosis d = diagnose(setting, in, computed_in<float>(setting, in));
  EXPECT_TRUE(d.right()) << d.text();
}

// Values around 1000 lose three digits of xhat in f32, and dgamma with them.
TEST(DiagnosisBounds, WhatF32LosesOfXFarFromZeroIsNoSlip) {
  for (const Setting& setting : norms()) {
    for (const double offset : {-30.0, 1000.0}) {
      SCOPED_TRACE(concat(to_string(setting.layer), " ", offset));
      const Inputs in = moved_inputs(setting, offset, 1, 1);
      const Diagnosis d = diagnose(setting, in, computed_in<float>(setting, in));
      EXPECT_TRUE(d.right()) << d.text();
      const Claim fine = computed_in<double>(setting, in);
      // In f64 so much is no rounding: it is right as far as f32 goes only.
      const Tensor off = mapped(fine.dgamma, [](double v, size_t) { return v + 1e-6; });
      EXPECT_FALSE(diagnose(setting, in, {.dgamma = fine.dgamma}).findings[0].coarse);
      EXPECT_TRUE(diagnose(setting, in, {.dgamma = off}).findings[0].coarse);
    }
  }
}

TEST(DiagnosisBounds, CannotTellWhereRoundingLeavesNothing) {
  const Setting setting{.layer = Layer::batch_norm};
  const Inputs in = moved_inputs(setting, 1e8, 1, 1);
  const Diagnosis d = diagnose(setting, in, {.dx = computed_in<float>(setting, in).dx});
  EXPECT_FALSE(d.right());
  EXPECT_EQ(d.findings[0].slip, Slip::cannot_tell);
  EXPECT_TRUE(d.findings[0].right_or_not);
  EXPECT_TRUE(contains(d.text(), "dx: CANNOT TELL whether it is right")) << d.text();
  EXPECT_TRUE(contains(d.text(), "x lies too far from 0 for its spread")) << d.text();
  EXPECT_TRUE(d.proposal.x.defined());
  EXPECT_TRUE(diagnose(setting, in, {.dx = library_claim(setting, in).dx}).right());
}

// One set far from 0 does not make the others unknown, nor does a set of zeros make it known.
TEST(DiagnosisBounds, SaysOfHowManySetsNothingIsLeft) {
  const Setting setting{.layer = Layer::layer_norm};
  Inputs in = draw_inputs(setting, {4, 6}, 0);
  in.x = mapped(in.x, [](double v, size_t i) { return i / 6 == 1 ? 1e9 + v : v; });
  const Claim claim{.dx = computed_in<float>(setting, in).dx};
  const Diagnosis d = diagnose(setting, in, claim);
  EXPECT_TRUE(d.right());
  EXPECT_TRUE(contains(d.text(), "dx: right, but for 1 set of which rounding leaves nothing."))
      << d.text();
  in.dy = mapped(in.dy, [](double v, size_t i) { return i / 6 == 1 ? v : 0.0; });
  const Claim turned{.dx = scaled(computed_in<float>(setting, in).dx, -1).to(DType::f32)};
  EXPECT_TRUE(diagnose(setting, in, turned).findings[0].right_or_not);
}

// The squares are infinite, so that the right dx is 0: by overflow, which proves nothing.
TEST(DiagnosisBounds, WhatOverflowsF64IsNotRight) {
  for (const Layer layer : {Layer::layer_norm, Layer::rms_norm}) {
    const Setting setting{.layer = layer};
    Inputs in = draw_inputs(setting, default_shape(setting), 0);
    const Tensor claimed = library_claim(setting, in).dx;
    in.x = mapped(in.x, [](double v, size_t) { return 1e170 * v; });
    // The library's own dx is 0 or NaN there, by the order of its products on each instruction set.
    const std::vector<double> right = library_claim(setting, in).dx.to_vector<double>();
    if (!std::ranges::all_of(right, [](double v) { return std::isfinite(v); })) {
      EXPECT_ERROR(diagnose(setting, in, {.dx = claimed}), ErrorCode::invalid_argument,
                   "the right gradient holds infinities or NaN");
      continue;
    }
    const Diagnosis d = diagnose(setting, in, {.dx = claimed});
    EXPECT_FALSE(d.right()) << d.text();
    EXPECT_TRUE(d.findings[0].right_or_not) << d.text();
    EXPECT_TRUE(d.proposal.x.defined());
  }
}

// A channel that a mask takes away hides nothing of the others.
TEST(DiagnosisBounds, MasksHideNothing) {
  const Setting setting{.layer = Layer::softmax2d};
  for (const double mask : {-1e9, -1e20, -1e30}) {
    const Inputs in = complete(
        setting,
        {.x = Tensor::from_vector<double>({mask, 0, 0.5, 1, 0.2, 0.7, mask, -1}, {2, 4, 1})}, 0);
    const Tensor dx = run_library(setting, in).dx;
    EXPECT_TRUE(diagnose(setting, in, {.dx = dx, .dgamma = {}, .dbeta = {}}).right()) << mask;
    std::vector<double> wrong = dx.to_vector<double>();
    wrong[1] += 1e-3;
    const Claim claim{.dx = Tensor::from_vector(wrong, {2, 4, 1}), .dgamma = {}, .dbeta = {}};
    EXPECT_EQ(diagnose(setting, in, claim).findings[0].slip, Slip::unknown) << mask;
  }
}

TEST(DiagnosisBounds, TinyAndHugeScales) {
  for (const Setting& setting : norms()) {
    for (const double scale : {1e-20, 1e-3, 300.0, 1e20}) {
      for (const double up : {1e-20, 1.0, 1e15}) {
        SCOPED_TRACE(concat(to_string(setting.layer), " ", scale, " ", up));
        const Inputs in = moved_inputs(setting, 0, scale, up);
        const Diagnosis fine = diagnose(setting, in, computed_in<double>(setting, in));
        EXPECT_TRUE(fine.right()) << fine.text();
        const Claim turned{
            .dx = mapped(computed_in<double>(setting, in).dx, [](double v, size_t) { return -v; })};
        EXPECT_EQ(diagnose(setting, in, turned).findings[0].slip, Slip::wrong_sign);
        for (const Finding& one : diagnose(setting, in, computed_in<float>(setting, in)).findings) {
          EXPECT_TRUE(one.slip == Slip::none || (scale == 1e20 && one.right_or_not)) << one.text;
        }
      }
    }
  }
}

TEST(DiagnosisBounds, F64ThatWasComputedInF32IsRightAsFarAsF32Goes) {
  const Setting setting{.layer = Layer::layer_norm};
  const Inputs in = draw_inputs(setting, {3, 6}, 0);
  const Claim coarse = computed_in<float>(setting, in);
  const Diagnosis d = diagnose(setting, in, {coarse.dx.to(DType::f64)});
  EXPECT_TRUE(d.right()) << d.text();
  EXPECT_TRUE(contains(d.text(), "dx: right, as far as f32 goes.")) << d.text();
  // A slip that f32 could not show has its name in f64 all the same.
  Setting without = setting;
  without.eps = 0;
  EXPECT_EQ(diagnose(setting, in, {library_claim(without, in).dx}).findings[0].slip,
            Slip::eps_missing);
}

TEST(DiagnosisBounds, CoarseInputsExcuseAFineClaim) {
  const Setting setting{.layer = Layer::rms_norm};
  const Inputs in = draw_inputs(setting, {4, 6}, 0);
  Claim claim{.dx = mapped(library_claim(setting, in).dx,
                           [](double v, size_t i) { return v * (1 + 2e-4 * (i % 3)); })};
  EXPECT_FALSE(diagnose(setting, in, claim).right());
  claim.inputs = DType::f16;
  EXPECT_TRUE(diagnose(setting, in, claim).right());
}

TEST(DiagnosisBounds, AZeroVarianceSetIsJudgedByItself) {
  const Setting setting{.layer = Layer::layer_norm};
  Inputs in = draw_inputs(setting, {4, 6}, 0);
  in.x = mapped(in.x, [](double v, size_t i) { return i / 6 == 1 ? 0.7 : v; });
  for (const Claim& claim : {computed_in<float>(setting, in), computed_in<double>(setting, in)})
    EXPECT_TRUE(diagnose(setting, in, claim).right()) << diagnose(setting, in, claim).text();
  // rstd of that set is 316: its gradients are the largest by far.
  const Tensor dx = mapped(library_claim(setting, in).dx,
                           [](double v, size_t i) { return i / 6 == 3 ? v + 1e-3 : v; });
  EXPECT_FALSE(diagnose(setting, in, {.dx = dx}).right());
  in.x = mapped(in.x, [](double, size_t) { return 0.7; });
  EXPECT_TRUE(diagnose(setting, in, computed_in<float>(setting, in)).right());
}

TEST(DiagnosisBounds, NanInOneSetLeavesTheOthers) {
  const Setting setting{.layer = Layer::layer_norm};
  const Inputs in = draw_inputs(setting, {4, 6}, 0);
  const Claim right = library_claim(setting, in);
  const auto with_nan = [](const Tensor& t) {
    return mapped(t, [](double v, size_t i) { return i == 8 ? NAN : v; });
  };
  const Finding others_right = diagnose(setting, in, {.dx = with_nan(right.dx)}).findings[0];
  EXPECT_EQ(others_right.slip, Slip::not_finite);
  EXPECT_TRUE(others_right.also.empty());
  EXPECT_EQ(others_right.text,
            "it holds NaN, first at element 8, in 1 of 4 sets; the others are right");
  const Tensor turned = mapped(right.dx, [](double v, size_t) { return -v; });
  const Finding both = diagnose(setting, in, {.dx = with_nan(turned)}).findings[0];
  EXPECT_EQ(both.slip, Slip::not_finite);
  EXPECT_EQ(both.also, std::vector<Slip>{Slip::wrong_sign});
  EXPECT_TRUE(contains(both.text, "; in the others wrong_sign: ")) << both.text;
  const Tensor dgamma =
      mapped(right.dgamma, [](double v, size_t k) { return k == 2 ? INFINITY : v; });
  EXPECT_EQ(diagnose(setting, in, {.dgamma = dgamma}).findings[0].text,
            "it holds an infinity, first at element 2, in 1 of 6 entries; the others are right");
}

TEST(DiagnosisBounds, TakesNoMoreThanItSays) {
  const Setting setting{.layer = Layer::layer_norm};
  const Tensor x = Tensor::zeros({2, kMostElements}, {.dtype = DType::f64});
  EXPECT_ERROR(diagnose(setting, {.x = x, .dy = x}, {.dx = x}), ErrorCode::invalid_argument,
               "takes up to 262144 elements", "a few samples tell as much");
}

}  // namespace
}  // namespace gradus::explain
