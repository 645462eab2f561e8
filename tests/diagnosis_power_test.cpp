// A name needs more values than numbers that could be fitted; else the input cannot tell.

#include <cmath>

#include "autograd/ops/arithmetic.h"
#include "autograd/ops/local_response_norm.h"
#include "tests/support/claims.h"

namespace gradus::explain {
namespace {

using namespace test;

TEST(DiagnosisPower, OfOneGammaAnyNumberIsAMultiple) {
  const Setting setting{.layer = Layer::batch_norm};
  const Inputs in = draw_inputs(setting, {3, 1, 4}, 0);
  const Claim right = library_claim(setting, in);
  for (const bool gamma : {true, false}) {
    const Tensor& one = gamma ? right.dgamma : right.dbeta;
    const auto judged = [&](double factor) {
      const Tensor off = scaled(one, factor);
      return diagnose(setting, in, gamma ? Claim{.dgamma = off} : Claim{.dbeta = off});
    };
    for (const double factor : {1.37, 2.0, -0.4, 5.0}) {
      const Diagnosis d = judged(factor);
      EXPECT_FALSE(d.right());
      EXPECT_EQ(d.findings[0].slip, Slip::cannot_tell) << d.text();
      EXPECT_FALSE(d.findings[0].right_or_not);
      EXPECT_TRUE(has(d.findings[0].also, Slip::wrong_scale)) << d.text();
      EXPECT_TRUE(contains(d.text(), "WRONG, but this input cannot tell how")) << d.text();
      EXPECT_TRUE(contains(d.text(), "there is one gamma")) << d.text();
      ASSERT_TRUE(d.proposal.x.defined());
      EXPECT_GT(d.proposal.gamma.numel(), 1);
    }
    // These are no numbers of which there is any choice.
    EXPECT_EQ(judged(-1).findings[0].slip, Slip::wrong_sign);
    EXPECT_EQ(judged(1.0 / 3).findings[0].slip, Slip::batch_mean);
  }
  const Inputs more = draw_inputs(setting, {3, 3, 4}, 0);
  const Tensor off = scaled(library_claim(setting, more).dgamma, 1.37);
  EXPECT_EQ(diagnose(setting, more, {.dgamma = off}).findings[0].slip, Slip::wrong_scale);
}

// Why an input tells little is said of the layer at hand.
TEST(DiagnosisPower, ReasonsAreOfTheLayer) {
  const auto text = [](const Setting& setting, const Inputs& in) {
    return diagnose(setting, in, library_claim(setting, in)).text();
  };
  const auto drawn = [&](Layer layer, const Shape& shape) {
    const Setting setting{.layer = layer};
    return text(setting, draw_inputs(setting, shape, 0));
  };
  const std::string element = "a set has one element: xhat and dx are 0";
  EXPECT_TRUE(contains(drawn(Layer::layer_norm, {3, 1}), element));
  EXPECT_TRUE(contains(drawn(Layer::rms_norm, {3, 1}), "xhat is 1 or -1 and dx is 0, but for eps"));
  EXPECT_TRUE(contains(drawn(Layer::local_response_norm, {2, 1, 3}), "it has no neighbours"));
  EXPECT_TRUE(contains(drawn(Layer::softmax2d, {2, 1, 2, 2}), "y is 1 and dx is 0"));
  for (const Layer layer : {Layer::layer_norm, Layer::rms_norm}) {
    const Setting setting{.layer = layer};
    Inputs same = draw_inputs(setting, {3, 4}, 0);
    same.x = same.x * 0.0 + 2.0;
    EXPECT_TRUE(contains(text(setting, same), "x is the same everywhere"));
    EXPECT_EQ(contains(text(setting, same), "xhat is 0"), layer == Layer::layer_norm);
    Inputs ones = draw_inputs(setting, {1, 5}, 0);
    ones.dy = ones.dy * 0.0 + 1.0;
    EXPECT_TRUE(contains(text(setting, ones), "dy is the same everywhere"));
    EXPECT_FALSE(contains(text(setting, ones), "the terms of dx cancel"));
    ones.gamma = ones.gamma * 0.0 + 1.0;
    EXPECT_EQ(contains(text(setting, ones), "the terms of dx cancel"), layer == Layer::layer_norm);
  }
}

// The proposal tells what the input could not.
TEST(DiagnosisPower, TheProposalTells) {
  const Setting setting{.layer = Layer::batch_norm};
  const Inputs in = draw_inputs(setting, {3, 1, 4}, 0);
  const auto mine = [&](const Inputs& at) {
    return Claim{.dgamma = scaled(library_claim(setting, at).dgamma, 1.37)};
  };
  const Diagnosis d = diagnose(setting, in, mine(in));
  ASSERT_FALSE(d.is_named());
  EXPECT_EQ(diagnose(setting, d.proposal, mine(d.proposal)).findings[0].slip, Slip::wrong_scale);
}

// In a single row of three every dx is some sum of the three terms.
TEST(DiagnosisPower, AsManyElementsAsTerms) {
  const auto expect_no_name = [](const Setting& setting, const Shape& shape, const Values& off) {
    const Inputs in = draw_inputs(setting, shape, 0);
    const Tensor dx =
        mapped(library_claim(setting, in).dx, [&](double v, size_t i) { return v + off[i]; });
    const Diagnosis d = diagnose(setting, in, {.dx = dx});
    EXPECT_FALSE(d.right());
    EXPECT_TRUE(d.findings[0].slip == Slip::cannot_tell || d.findings[0].slip == Slip::unknown)
        << d.text();
    EXPECT_FALSE(contains(d.text(), "wrong_coefficients")) << d.text();
  };
  expect_no_name({.layer = Layer::layer_norm}, {1, 3}, {0.31, -0.12, 0.07});
  expect_no_name({.layer = Layer::rms_norm}, {1, 2}, {0.31, -0.12});
  expect_no_name({.layer = Layer::softmax2d}, {1, 2, 1}, {0.31, -0.12});
  expect_no_name({.layer = Layer::local_response_norm}, {1, 2, 1}, {0.31, -0.12});
}

// A factor of a sum is the same for all sets, or it is none: one set cannot say.
TEST(DiagnosisPower, OneSetCannotTellAFactorOfItsSums) {
  const Setting setting{.layer = Layer::layer_norm};
  for (const int64_t rows : {1, 3}) {
    const Inputs in = draw_inputs(setting, {rows, 6}, 0);
    const Library library = run_library(setting, in);
    const Values projection = library.terms.projection.to_vector<double>();
    const Tensor dx =
        mapped(library.dx, [&](double v, size_t i) { return v + 0.37 * projection[i]; });
    const Finding one = diagnose(setting, in, {.dx = dx}).findings[0];
    EXPECT_EQ(one.slip, rows == 1 ? Slip::cannot_tell : Slip::wrong_scale) << one.text;
    EXPECT_TRUE(contains(one.text, "the projection term is 1.37 times")) << one.text;
    const Tensor turned =
        mapped(library.dx, [&](double v, size_t i) { return v - 2 * projection[i]; });
    EXPECT_EQ(diagnose(setting, in, {.dx = turned}).findings[0].slip, Slip::wrong_sign);
  }
}

// Eight bits of a single value are soon met by one of many candidates.
TEST(DiagnosisPower, OneCoarseValueIsNoEvidence) {
  const Setting setting{.layer = Layer::batch_norm};
  const Inputs one = draw_inputs(setting, {3, 1, 4}, 0), four = draw_inputs(setting, {3, 4, 4}, 0);
  const auto judged = [&](const Inputs& in) {
    const Tensor mean = scaled(library_claim(setting, in).dgamma, 1.0 / 3).to(DType::bf16);
    return diagnose(setting, in, {.dgamma = mean}).findings[0];
  };
  EXPECT_EQ(judged(one).slip, Slip::cannot_tell) << judged(one).text;
  EXPECT_TRUE(has(judged(one).also, Slip::batch_mean)) << judged(one).text;
  EXPECT_EQ(judged(four).slip, Slip::batch_mean) << judged(four).text;
}

// 16 bits hide an eps of 1e-5 on any input in tenths, and one of 0.1 on none.
TEST(DiagnosisPower, SaysWhatRoundingHides) {
  for (const Layer layer : {Layer::batch_norm, Layer::group_norm, Layer::layer_norm,
                            Layer::instance_norm, Layer::rms_norm}) {
    for (const DType dtype : {DType::f16, DType::bf16}) {
      SCOPED_TRACE(concat(to_string(layer), " ", to_string(dtype)));
      Setting setting{.layer = layer}, without = setting;
      without.eps = 0;
      const Inputs in = draw_inputs(setting, {4, 6, 5}, 0);
      const Diagnosis d = diagnose(setting, in, library_claim(without, in, dtype));
      EXPECT_TRUE(d.right()) << d.text();
      EXPECT_TRUE(d.has_power()) << d.text();
      for (const Slip slip : {Slip::eps_missing, Slip::eps_outside_root})
        EXPECT_TRUE(has(d.rounded_away, slip)) << to_string(slip) << "\n" << d.text();
      EXPECT_FALSE(has(d.rounded_away, Slip::wrong_count)) << d.text();
      EXPECT_TRUE(contains(d.text(), "Rounding hides, here and on inputs like this: ")) << d.text();
      EXPECT_TRUE(contains(d.text(), "eps_missing, eps_outside_root. A finer dtype")) << d.text();
      setting.eps = 0.1;
      EXPECT_FALSE(diagnose(setting, in, library_claim(without, in, dtype)).right());
      const Diagnosis large = diagnose(setting, in, library_claim(setting, in, dtype));
      EXPECT_FALSE(has(large.rounded_away, Slip::eps_missing)) << large.text();
    }
    const Setting setting{.layer = layer};
    const Inputs in = draw_inputs(setting, {4, 6, 5}, 0);
    const Diagnosis fine = diagnose(setting, in, library_claim(setting, in));
    EXPECT_TRUE(fine.rounded_away.empty()) << fine.text();
    EXPECT_FALSE(contains(fine.text(), "Rounding hides")) << fine.text();
  }
}

// With gamma = 2 everywhere, a gamma too much is a factor 2.
TEST(DiagnosisPower, SaysAllThatAConstantGammaMakesAlike) {
  const Setting setting{.layer = Layer::group_norm};
  Inputs in = draw_inputs(setting, {3, 4, 3}, 0);
  in.gamma = mapped(in.gamma, [](double, size_t) { return 2.0; });
  const Finding one =
      diagnose(setting, in, {.dx = scaled(library_claim(setting, in).dx, 2)}).findings[0];
  EXPECT_EQ(one.slip, Slip::gamma_twice) << one.text;
  EXPECT_TRUE(has(one.also, Slip::wrong_scale)) << one.text;
  EXPECT_TRUE(contains(one.text, "; or: it is multiplied by 2")) << one.text;
}

TEST(DiagnosisPower, EachClaimIsJudgedByItself) {
  const Setting setting{.layer = Layer::layer_norm};
  const Inputs in = draw_inputs(setting, {4, 6}, 0);
  const Claim right = library_claim(setting, in);
  const Diagnosis dgamma =
      diagnose(setting, in, {right.dx, scaled(right.dgamma, 0.25), right.dbeta});
  EXPECT_EQ(dgamma.findings[0].slip, Slip::none);
  EXPECT_EQ(dgamma.findings[1].slip, Slip::batch_mean);
  EXPECT_EQ(dgamma.findings[2].slip, Slip::none);
  Setting other = setting;
  other.eps = 0.5;
  const Diagnosis dx =
      diagnose(setting, in, {library_claim(other, in).dx, right.dgamma, right.dbeta});
  EXPECT_EQ(dx.findings[0].slip, Slip::other_eps) << dx.text();
  EXPECT_EQ(dx.findings[1].slip, Slip::none) << dx.text();
}

// Whatever dy is scaled by, in sets of two elements, where eps is all that is left of dx, and in
// evaluation. Of a single variance it may as well be rstd.
TEST(DiagnosisPower, AnotherEpsWhereverItShows) {
  const Setting all[] = {{.layer = Layer::layer_norm},
                         {.layer = Layer::rms_norm},
                         {.layer = Layer::group_norm},
                         {.layer = Layer::batch_norm, .training = false}};
  for (const Setting& setting : all) {
    for (const Shape& shape : {Shape{4, 6}, Shape{4, 2}}) {
      for (const double up : {1e-20, 1.0, 1e15}) {
        SCOPED_TRACE(concat(to_string(setting.layer), " ", shape, " ", up));
        Inputs in = draw_inputs(setting, shape, 0);
        in.dy = scaled(in.dy, up);
        Setting other = setting;
        other.eps = 0.02;
        if (setting.layer == Layer::group_norm && shape[1] == 2) continue;  // m = 1: dx is 0
        const Finding one = diagnose(setting, in, {.dx = library_claim(other, in).dx}).findings[0];
        EXPECT_EQ(one.slip, Slip::other_eps) << one.text;
        EXPECT_TRUE(contains(one.text, "about 0.02 ")) << one.text;
      }
    }
  }
  const Inputs row = draw_inputs(all[0], {1, 6}, 0);
  Setting other = all[0];
  other.eps = 0.02;
  const Finding one = diagnose(all[0], row, {.dx = library_claim(other, row).dx}).findings[0];
  EXPECT_NE(one.slip, Slip::other_eps) << one.text;
  EXPECT_TRUE(has(one.also, Slip::other_eps)) << one.text;
}

TEST(DiagnosisPower, TwoSlipsAtOnce) {
  const Setting setting{.layer = Layer::layer_norm};
  const Inputs in = draw_inputs(setting, {4, 6}, 0);
  const Values x = in.x.to_vector<double>(), dy = in.dy.to_vector<double>();
  Values sums(6);
  for (size_t i = 0; i < x.size(); ++i) sums[i % 6] += dy[i] * x[i] / 4;
  const Finding dgamma =
      diagnose(setting, in, {.dgamma = Tensor::from_vector(sums, {6})}).findings[0];
  EXPECT_EQ(dgamma.slip, Slip::x_for_xhat) << dgamma.text;
  EXPECT_TRUE(contains(dgamma.text, "; and it is multiplied by 0.25, which is 1/n")) << dgamma.text;
  const Library library = run_library(setting, in);
  const Values direct = library.terms.direct.to_vector<double>();
  const Tensor dx = mapped(library.dx, [&](double v, size_t i) { return -v + 2 * direct[i]; });
  EXPECT_EQ(diagnose(setting, in, {.dx = dx}).findings[0].slip, Slip::wrong_sign);
  EXPECT_TRUE(contains(diagnose(setting, in, {.dx = dx}).findings[0].text,
                       "the sign of mean and projection is turned"));
}

// LocalResponseNorm in f32, where a factor has to be fitted without the other term.
TEST(DiagnosisPower, FactorsOfLocalResponseNorm) {
  for (const int64_t size : {1, 2, 3, 4}) {
    const Setting setting{.layer = Layer::local_response_norm, .size = size};
    const Inputs in = draw_inputs(setting, {2, 6, 3}, 0);
    const Values dx = library_claim(setting, in).dx.to_vector<double>();
    const Values x = in.x.to_vector<double>(), dy = in.dy.to_vector<double>();
    const Tensor denom = local_response_norm_denom(in.x, size, setting.alpha, setting.k);
    const Values root = denom.to_vector<double>();
    for (const DType dtype : {DType::f64, DType::f32, DType::f16}) {
      const Tensor off = mapped(in.x, [&](double, size_t i) {
        const double direct = dy[i] * std::pow(root[i], -setting.beta);
        return direct + 0.5 * (dx[i] - direct);
      });
      const Finding one = diagnose(setting, in, {.dx = off.to(dtype)}).findings[0];
      EXPECT_EQ(one.slip, Slip::wrong_scale) << one.text;
      EXPECT_TRUE(contains(one.text, "the derivative of a square has a 2") || dtype == DType::f16)
          << one.text;
    }
  }
}

}  // namespace
}  // namespace gradus::explain
