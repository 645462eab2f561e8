// What a diagnosis says to backwards as learners write them.
#include <cmath>
#include <functional>

#include "tests/support/claims.h"

namespace gradus::explain {
namespace {

using namespace test;

// What a learner has of one element of a GroupNorm.
struct Element {
  double x, dy, gamma, mu, rstd, xhat, m1, m2;
};

// GroupNorm of [n, c, s] in plain loops, with room for slips.
struct Learner {
  std::function<double(const Element&)> dx = [](const Element& e) {
    return e.rstd * (e.dy * e.gamma - e.m1 - e.xhat * e.m2);
  };
  std::function<double(double)> variance = [](double var) { return var; };
  double divisor = 0;         // of m1 and m2; 0: m
  bool gamma_in_sums = true;  // m1, m2
  bool apart = false;         // channel k belongs to group k % groups
  bool assigned = false;      // = in place of += for dgamma and dbeta

  Claim backward(const Inputs& in, int64_t groups, double eps) const {
    const Shape& shape = in.x.shape();
    const int64_t c = shape[1], s = shape[2], sets = shape[0] * groups;
    const Values x = in.x.to_vector<double>(), dy = in.dy.to_vector<double>(),
                 gamma = in.gamma.to_vector<double>();
    const auto m = static_cast<double>(shape.numel() / sets);
    const auto channel = [&](size_t i) { return static_cast<int64_t>(i) / s % c; };
    const auto g = [&](size_t i) { return gamma[static_cast<size_t>(channel(i))]; };
    const auto set = [&](size_t i) {
      const int64_t k = channel(i), sample = static_cast<int64_t>(i) / (c * s);
      return static_cast<size_t>(sample * groups + (apart ? k % groups : k / (c / groups)));
    };
    const auto number = static_cast<size_t>(sets);
    Values mu(number), var(number), m1(number), m2(number), out(x.size()), dgamma(gamma.size()),
        dbeta(gamma.size());
    for (size_t i = 0; i < x.size(); ++i) mu[set(i)] += x[i] / m;
    for (size_t i = 0; i < x.size(); ++i) var[set(i)] += std::pow(x[i] - mu[set(i)], 2) / m;
    const auto rstd = [&](size_t i) { return 1 / std::sqrt(variance(var[set(i)]) + eps); };
    const auto xhat = [&](size_t i) { return (x[i] - mu[set(i)]) * rstd(i); };
    for (size_t i = 0; i < x.size(); ++i) {
      const double d = gamma_in_sums ? dy[i] * g(i) : dy[i];
      m1[set(i)] += d / (divisor > 0 ? divisor : m);
      m2[set(i)] += d * xhat(i) / (divisor > 0 ? divisor : m);
    }
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t k = static_cast<size_t>(channel(i));
      out[i] = dx({x[i], dy[i], g(i), mu[set(i)], rstd(i), xhat(i), m1[set(i)], m2[set(i)]});
      dgamma[k] = (assigned ? 0 : dgamma[k]) + dy[i] * xhat(i);
      dbeta[k] = (assigned ? 0 : dbeta[k]) + dy[i];
    }
    return {Tensor::from_vector(out, shape), Tensor::from_vector(dgamma, {c}),
            Tensor::from_vector(dbeta, {c})};
  }
};

class DiagnosisLearner : public testing::Test {
 protected:
  Diagnosis of(const Learner& learner, DType dtype = DType::f64) const {
    Claim claim = learner.backward(in, setting.groups, setting.eps);
    for (Tensor* tensor : {&claim.dx, &claim.dgamma, &claim.dbeta}) *tensor = tensor->to(dtype);
    return diagnose(setting, in, claim);
  }
  // One slip and nothing else, in these words.
  static void expect(const Finding& found, Slip slip, const std::string& text) {
    EXPECT_EQ(found.slip, slip) << found.text;
    EXPECT_EQ(found.text, text);
    EXPECT_TRUE(found.also.empty());
  }

  const Setting setting{.layer = Layer::group_norm};
  const Inputs in = draw_inputs(setting, default_shape(setting), kExampleSeed);
};

TEST_F(DiagnosisLearner, TheRightOneIsRight) { EXPECT_TRUE(of({}).right()) << of({}).text(); }

// On the default input no count passes for m.
TEST_F(DiagnosisLearner, CountsAreNamed) {
  const auto said = [&](double divisor) {
    const Finding found = of({.divisor = divisor}).findings[0];
    EXPECT_EQ(found.slip, Slip::wrong_count) << found.text;
    EXPECT_TRUE(found.also.empty());
    return found.text;
  };
  EXPECT_EQ(said(1), "the sums are not divided by m = 6");
  EXPECT_EQ(said(2), "the sums are divided by 2, the channels of a group, instead of m = 6");
  EXPECT_EQ(said(3),
            "the sums are divided by 3, the number of samples or the positions of one channel, "
            "instead of m = 6");
  EXPECT_EQ(said(4), "the sums are divided by 4, the number of channels, instead of m = 6");
  EXPECT_EQ(said(5), "the sums are divided by 5, which is m - 1, instead of m = 6");
  EXPECT_EQ(said(9), "the sums are divided by 9, the elements of one channel, instead of m = 6");
  EXPECT_EQ(said(36), "the sums are divided by 36, all elements, instead of m = 6");
}

TEST_F(DiagnosisLearner, AVarianceThatIsNotDivided) {
  const Diagnosis d = of({.variance = [](double var) { return 6 * var; }});
  for (const size_t k : {0, 1})
    expect(d.findings[k], Slip::wrong_count, "the variance is a sum: it must be divided by m = 6");
  EXPECT_EQ(d.findings[2].slip, Slip::none);
}

TEST_F(DiagnosisLearner, ARootThatIsMissingOrNotInverted) {
  const double eps = setting.eps;
  const auto squared = [&](double var) { return std::pow(var + eps, 2) - eps; };
  const auto inverse = [&](double var) { return 1 / (var + eps) - eps; };
  for (const size_t k : {0, 1}) {
    expect(of({.variance = squared}).findings[k], Slip::wrong_root,
           "rstd has no root: it is 1 / sqrt(var + eps), not 1 / (var + eps)");
    expect(of({.variance = inverse}).findings[k], Slip::wrong_root,
           "rstd is one over the root, 1 / sqrt(var + eps), not the root");
  }
}

TEST_F(DiagnosisLearner, GroupsOfChannelsThatLieApart) {
  const Diagnosis d = of({.apart = true});
  expect(d.findings[0], Slip::wrong_set,
         "statistics and sums are those of the channels of a sample that lie 2 apart");
  expect(d.findings[1], Slip::wrong_set,
         "the statistics are those of the channels of a sample that lie 2 apart");
}

TEST_F(DiagnosisLearner, AnotherNumberOfGroups) {
  const Setting three{.layer = Layer::group_norm, .groups = 3}, two{.layer = Layer::group_norm};
  const Inputs six = draw_inputs(three, {2, 6, 2}, 0);
  const Diagnosis d = diagnose(three, six, Learner().backward(six, two.groups, two.eps));
  expect(d.findings[0], Slip::wrong_set, "statistics and sums are those of 2 groups, not 3");
  expect(d.findings[1], Slip::wrong_set, "the statistics are those of 2 groups, not 3");
}

TEST_F(DiagnosisLearner, TermsWithTheWrongFactors) {
  const Diagnosis bare =
      of({.dx = [](const Element& e) { return e.rstd * (e.dy * e.gamma - e.xhat * e.m2) - e.m1; }});
  expect(bare.findings[0], Slip::rstd_missing, "the factor rstd is missing in the mean, rstd·m1");
  const Diagnosis raw =
      of({.dx = [](const Element& e) { return e.rstd * (e.dy * e.gamma - e.m1 - e.x * e.m2); }});
  expect(raw.findings[0], Slip::x_for_xhat, "the projection has x in place of xhat");
  const Diagnosis summed = of({.dx = [](const Element& e) {
    const double of_x = e.m2 / e.rstd + e.mu * e.m1;  // mean(d·x)
    return e.rstd * (e.dy * e.gamma - e.m1 - e.xhat * of_x);
  }});
  expect(summed.findings[0], Slip::x_for_xhat, "m2 has x in place of xhat: it is mean(d·xhat)");
  const Diagnosis twice = of({.dx = [](const Element& e) { return e.rstd * Learner().dx(e); }});
  expect(twice.findings[0], Slip::rstd_extra, "there is a factor rstd too much in front of it all");
  const Diagnosis half = of({.dx = [](const Element& e) {
    return e.rstd * (e.dy * e.gamma - e.m1 - 0.5 * e.xhat * e.m2);
  }});
  expect(half.findings[0], Slip::wrong_count,
         "the sum of the projection term is divided by 12, which is 2·m, as if the 2 of a square's "
         "derivative were missing, instead of m = 6");
  const Diagnosis both = of({.dx = [](const Element& e) {
    return e.rstd * (e.dy * e.gamma - 0.5 * e.m1 - 0.5 * e.xhat * e.m2);
  }});
  EXPECT_EQ(both.findings[0].slip, Slip::wrong_count);
  EXPECT_FALSE(contains(both.findings[0].text, "derivative")) << both.findings[0].text;
  const Tensor more = scaled(library_claim(setting, in).dx, 1.0001);
  expect(diagnose(setting, in, {.dx = more}).findings[0], Slip::wrong_scale,
         "it is multiplied by 1.0001");
}

TEST_F(DiagnosisLearner, SumsThatAreAssigned) {
  const Diagnosis d = of({.assigned = true});
  for (const size_t k : {1, 2}) {
    EXPECT_EQ(d.findings[k].slip, Slip::batch_sum_forgotten);
    EXPECT_TRUE(contains(d.findings[k].text, "as of = in place of +=")) << d.findings[k].text;
  }
}

// dgamma as another layer, or the same in another mode, has it.
TEST(DiagnosisOfDgamma, OfAnotherLayerOrMode) {
  for (const Layer layer : {Layer::layer_norm, Layer::rms_norm}) {
    const bool mean = layer == Layer::layer_norm;
    const Setting mine{.layer = layer}, other{.layer = mean ? Layer::rms_norm : Layer::layer_norm};
    const Inputs in = draw_inputs(mine, {3, 5}, 0);
    Inputs same{.x = in.x, .dy = in.dy, .gamma = in.gamma};
    if (!mean) same.beta = in.gamma;
    const Finding found =
        diagnose(mine, in, {.dgamma = library_claim(other, same).dgamma}).findings[0];
    EXPECT_EQ(found.slip, Slip::other_layer) << found.text;
    EXPECT_TRUE(contains(found.text, mean ? "this is rms_norm's" : "this is layer_norm's"));
  }
  Setting evaluation{.layer = Layer::batch_norm}, training = evaluation;
  evaluation.training = false;
  const Inputs in = draw_inputs(evaluation, {3, 4, 3}, 0);
  const Finding found =
      diagnose(evaluation, in, {.dgamma = library_claim(training, in).dgamma}).findings[0];
  EXPECT_EQ(found.slip, Slip::stale_statistics);
  EXPECT_EQ(found.text, "the statistics are those of the batch; evaluation takes the running ones");
}

// dgamma with the statistics of a neighbour.
TEST(DiagnosisOfDgamma, OfTheNextOrThePreviousSample) {
  const Setting setting{.layer = Layer::layer_norm};
  const Inputs in = draw_inputs(setting, {4, 5}, 0);
  const Library library = run_library(setting, in);
  const Values x = in.x.to_vector<double>(), dy = in.dy.to_vector<double>(),
               mean = library.saved.mean.to_vector<double>(),
               rstd = library.saved.rstd.to_vector<double>();
  for (const auto& [step, sample] : {std::pair(size_t{1}, "next"), {size_t{3}, "previous"}}) {
    Values dgamma(5);
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t row = (i / 5 + step) % 4;
      dgamma[i % 5] += dy[i] * (x[i] - mean[row]) * rstd[row];
    }
    const Finding found =
        diagnose(setting, in, {.dgamma = Tensor::from_vector(dgamma, {5})}).findings[0];
    EXPECT_EQ(found.slip, Slip::stale_statistics);
    EXPECT_EQ(found.text, concat("the statistics are those of the ", sample, " sample"));
  }
}

// Each is said once.
TEST_F(DiagnosisLearner, AMissingTermIsSaidOnce) {
  const Diagnosis d = of({.dx = [](const Element& e) { return e.rstd * (e.dy * e.gamma - e.m1); }});
  expect(d.findings[0], Slip::projection_missing,
         "the projection term -rstd·xhat·m2 is missing: rstd depends on every x of its set");
  const Diagnosis turned = of({.dx = [](const Element& e) { return -Learner().dx(e); }});
  expect(turned.findings[0], Slip::wrong_sign, "the sign of it all is turned");
  const Tensor mean = scaled(library_claim(setting, in).dgamma, 1.0 / 3);
  expect(diagnose(setting, in, {.dgamma = mean}).findings[0], Slip::batch_mean,
         "it is divided by the number of samples, 3: dgamma is a sum, not a mean");
  const Tensor of_all = scaled(library_claim(setting, in).dbeta, 1.0 / 9);
  expect(diagnose(setting, in, {.dbeta = of_all}).findings[0], Slip::wrong_count,
         "it is divided by the number of elements that share the parameter, 9: dbeta is a sum, not "
         "a mean");
}

TEST_F(DiagnosisLearner, GammaOutsideAndSumsThatAreNotDivided) {
  const Diagnosis d =
      of({.dx = [](const Element& e) { return e.gamma * e.rstd * (e.dy - e.m1 - e.xhat * e.m2); },
          .divisor = 1,
          .gamma_in_sums = false});
  EXPECT_EQ(d.findings[0].slip, Slip::gamma_outside) << d.text();
  EXPECT_TRUE(contains(d.findings[0].text, "; and the sums are not divided by m = 6"));
}

// m1 and m2 of each channel by itself, but divided by m.
TEST_F(DiagnosisLearner, SumsOverAChannelThatAreDividedByM) {
  const Values x = in.x.to_vector<double>(), dy = in.dy.to_vector<double>(),
               gamma = in.gamma.to_vector<double>();
  const Library library = run_library(setting, in);
  const Values mean = library.saved.mean.to_vector<double>(),
               rstd = library.saved.rstd.to_vector<double>();
  Values dx(x.size());
  for (size_t first = 0; first < x.size(); first += 3) {
    const size_t set = first / 6, k = first / 3 % 4;
    const auto xhat = [&](size_t i) { return (x[i] - mean[set]) * rstd[set]; };
    double m1 = 0, m2 = 0;
    for (size_t i = first; i < first + 3; ++i) {
      m1 += dy[i] * gamma[k] / 6;
      m2 += dy[i] * gamma[k] * xhat(i) / 6;
    }
    for (size_t i = first; i < first + 3; ++i)
      dx[i] = rstd[set] * (dy[i] * gamma[k] - m1 - xhat(i) * m2);
  }
  const Finding found =
      diagnose(setting, in, {.dx = Tensor::from_vector(dx, in.x.shape())}).findings[0];
  EXPECT_EQ(found.slip, Slip::wrong_set);
  EXPECT_TRUE(contains(found.text,
                       "one channel of one sample instead of the set that shares the statistics; "
                       "and the sums are divided by 6, the elements of a whole set, instead of "
                       "the 3 that are added"))
      << found.text;
}

// Two slips that nobody has a name for: where gamma stands shows all the same.
TEST_F(DiagnosisLearner, GammaInTheWrongPlaceAmongOtherSlips) {
  const auto said = [&](auto dx) {
    const Finding found = of({.dx = dx, .gamma_in_sums = false}).findings[0];
    EXPECT_EQ(found.slip, Slip::unknown) << found.text;
    return found.text;
  };
  EXPECT_EQ(
      said([](const Element& e) { return e.gamma * (e.dy - 0.3 * e.m1 - 0.7 * e.xhat * e.m2); }),
      "none of the usual slips gives it; your dx is gamma·(a·dy + b + c·xhat) in each set: gamma "
      "belongs inside, d = dy·gamma takes the place of dy");
  EXPECT_EQ(said([](const Element& e) { return e.dy - 0.3 * e.m1 - 0.7 * e.xhat * e.m2; }),
            "none of the usual slips gives it; your dx is a·dy + b + c·xhat in each set: gamma is "
            "missing, d = dy·gamma takes the place of dy");
}

TEST_F(DiagnosisLearner, SaysWhereItIsWrong) {
  const Claim right = library_claim(setting, in);
  const Tensor unfinished = mapped(right.dx, [](double v, size_t i) { return i < 30 ? v : 0; });
  EXPECT_EQ(diagnose(setting, in, {.dx = unfinished}).findings[0].text,
            "none of the usual slips gives it; it is right in 5 of 6 sets, and wrong first at "
            "element 30 (from 0); what is wrong is 0");
  const Tensor off = mapped(right.dgamma, [](double v, size_t i) { return i == 2 ? v + 1 : v; });
  EXPECT_EQ(diagnose(setting, in, {.dgamma = off}).findings[0].text,
            "none of the usual slips gives it; it is right in 3 of 4 entries, and wrong first at "
            "element 2 (from 0)");
}

TEST_F(DiagnosisLearner, RoundingOnTheWayIsNoWrongIndex) {
  const Tensor rounded = library_claim(setting, in).dx.to(DType::f16).to(DType::f64);
  const Diagnosis d = diagnose(setting, in, {.dx = rounded});
  EXPECT_TRUE(contains(d.text(), "but nearly the right one: look for rounding to a coarser dtype"))
      << d.text();
  const Tensor mixed =
      library_claim(setting, in).dx.reshape({3, 3, 4}).transpose(1, 2).contiguous();
  EXPECT_TRUE(contains(diagnose(setting, in, {.dx = mixed}).text(), "such as wrong indices"));
}

// No other x would help.
TEST_F(DiagnosisLearner, SmallMistakesInACoarseDtype) {
  const Diagnosis d = of({.variance = [](double var) { return var - 1e-5; }}, DType::f32);
  EXPECT_FALSE(d.right());
  EXPECT_FALSE(d.is_named());
  EXPECT_FALSE(d.proposal.x.defined());
  EXPECT_TRUE(contains(d.text(),
                       "what is wrong with dx is hardly more than rounding may leave: "
                       "compute in a finer dtype\n"))
      << d.text();
  EXPECT_FALSE(contains(d.text(), "Try an x"));
}

// Where a plain slip fits, be it with little evidence, two at once are no better.
TEST(DiagnosisOfHalves, OneSlipIsNotTwo) {
  const Setting setting{.layer = Layer::rms_norm};
  const Inputs in = draw_inputs(setting, {3, 5}, 0);
  const Tensor direct = run_library(setting, in).terms.direct;
  const Diagnosis d = diagnose(setting, in, {.dx = direct.to(DType::f16)});
  EXPECT_FALSE(d.right());
  EXPECT_TRUE(contains(d.findings[0].text, "the projection term -rstd·xhat·m2 is missing"));
  EXPECT_FALSE(contains(d.findings[0].text, "; and ")) << d.findings[0].text;
  const Diagnosis right = diagnose(setting, in, library_claim(setting, in, DType::f16));
  EXPECT_TRUE(right.text().starts_with("dx: right, as far as f16 goes. ")) << right.text();
}

// Numbers that say nothing are left out.
TEST_F(DiagnosisLearner, NoMoreNumbersThanSayAnything) {
  const auto text = [&](const Learner& learner) { return of(learner).text(); };
  EXPECT_TRUE(contains(text({.divisor = 3}), "Best fit: 1.0000·direct + 2.0000·mean + 2.0000"));
  EXPECT_FALSE(contains(text({.divisor = 3}), "times what rounding allows"));
  const std::string eps = text({.variance = [](double var) { return var - 1e-5; }});
  EXPECT_TRUE(contains(eps, "times what rounding allows")) << eps;
  EXPECT_FALSE(contains(eps, "Best fit")) << eps;
  const std::string nan = text({.dx = [](const Element&) { return std::nan(""); }});
  EXPECT_TRUE(
      nan.starts_with("dx: WRONG, not_finite: it holds NaN, first at element 0, in 6 of 6 "
                      "sets.\ndgamma: right"))
      << nan;
}

}  // namespace
}  // namespace gradus::explain
