// The references of Adam, AdamW and Muon against cases known by hand.
#include "tests/support/reference_optim.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gradus::ref {
namespace {

Array one(double value) { return array({1}, {value}); }

double first_adam_step(double gradient) {
  Array w = one(0);
  AdamState state;
  adam_step(w, one(gradient), state, 1e-3, {});
  return -w[0];
}

// eps is added to the root of the corrected second moment.
TEST(ReferenceAdam, EpsOutsideTheRoot) {
  EXPECT_NEAR(first_adam_step(1e-8), 5e-4, 1e-11);
  EXPECT_NEAR(first_adam_step(1e-4), 0.0009999000, 1e-10);
}

TEST(ReferenceAdam, ZeroGradient) {
  Array w = array({3}, {1, -2, 0.5});
  AdamState state;
  for (int step = 0; step < 3; ++step) adam_step(w, zeros({3}), state, 1e-3, {});
  EXPECT_EQ(w.data, (std::vector<double>{1, -2, 0.5}));
  EXPECT_EQ(state.step, 3);
}

TEST(ReferenceAdam, DecayIsDecoupledOrNot) {
  Array coupled = one(1), decoupled = one(1);
  AdamState a, b;
  const AdamOptions options{.weight_decay = 0.01};
  adam_step(coupled, one(0), a, 0.1, options);
  adamw_step(decoupled, one(0), b, 0.1, options);
  EXPECT_NEAR(coupled[0], 0.9, 1e-6);
  EXPECT_NEAR(decoupled[0], 0.999, 1e-15);
  EXPECT_EQ(b.m[0], 0);
}

// A constant gradient: every corrected moment is the gradient, every step is lr.
TEST(ReferenceAdam, ConstantGradient) {
  Array w = one(1);
  AdamState state;
  for (int step = 0; step < 5; ++step) adam_step(w, one(2), state, 0.1, {.eps = 0});
  EXPECT_NEAR(w[0], 0.5, 1e-14);
}

// One step of the quintic on a diagonal matrix maps each singular value s / |X| to
// a s + b s^3 + c s^5.
TEST(ReferenceMuon, QuinticOfSingularValues) {
  MuonOptions options;
  options.ns_steps = 1;
  const Array out = newton_schulz(array({2, 3}, {3, 0, 0, 0, 4, 0}), options);
  const auto quintic = [](double s) {
    return 3.4445 * s - 4.775 * std::pow(s, 3) + 2.0315 * std::pow(s, 5);
  };
  EXPECT_NEAR(out.at(0, 0), quintic(0.6), 1e-15);
  EXPECT_NEAR(out.at(1, 1), quintic(0.8), 1e-15);
  EXPECT_EQ(out.at(0, 1), 0);
}

// After five steps all singular values lie around 1, whichever side is longer.
TEST(ReferenceMuon, NearlyOrthogonal) {
  Array x = zeros({4, 2});
  for (int64_t i = 0; i < 8; ++i) x[i] = std::sin(0.37 * (i + 1) * (i + 2));
  Array turned = zeros({2, 4});
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t j = 0; j < 2; ++j) turned.at(j, i) = x.at(i, j);
  }
  const Array a = newton_schulz(x, {}), b = newton_schulz(turned, {});
  double trace = 0;
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t j = 0; j < 2; ++j) {
      EXPECT_NEAR(a.at(i, j), b.at(j, i), 1e-14);
      trace += a.at(i, j) * a.at(i, j);
    }
  }
  EXPECT_GT(trace, 2 * 0.7 * 0.7);
  EXPECT_LT(trace, 2 * 1.25 * 1.25);
}

TEST(ReferenceMuon, MomentumDecayAndScale) {
  MuonOptions options;
  options.ns_steps = 0;  // the normalized direction itself
  options.momentum = 0.5;
  options.weight_decay = 0.25;
  Array w = array({4, 1}, {1, 1, 1, 1}), buffer;
  const Array gradient = array({4, 1}, {3, 0, 4, 0});
  muon_step(w, gradient, buffer, 0.1, options);
  // sqrt(4 / 1) = 2
  EXPECT_NEAR(w[0], 0.975 - 0.1 * 2 * 0.6, 1e-15);
  EXPECT_NEAR(w[1], 0.975, 1e-15);
  EXPECT_EQ(buffer.data, gradient.data);
  muon_step(w, zeros({4, 1}), buffer, 0.1, options);
  EXPECT_EQ(buffer[2], 2);
  EXPECT_NEAR(w[1], 0.975 * 0.975, 1e-15);

  options.adjust = MuonOptions::Adjust::match_rms_adamw;
  options.weight_decay = 0;
  Array v = array({4, 1}, {1, 1, 1, 1}), fresh;
  muon_step(v, gradient, fresh, 0.1, options);
  EXPECT_NEAR(v[2], 1 - 0.1 * 0.2 * 2 * 0.8, 1e-15);
}

// Without a gradient nothing moves: the norm is not below eps.
TEST(ReferenceMuon, ZeroGradient) {
  Array w = array({2, 2}, {1, 2, 3, 4}), buffer;
  muon_step(w, zeros({2, 2}), buffer, 0.1, {.weight_decay = 0});
  EXPECT_EQ(w.data, (std::vector<double>{1, 2, 3, 4}));
}

}  // namespace
}  // namespace gradus::ref
