// The references of the activations against cases known by hand and finite differences.
#include "tests/support/reference_activation.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/reference_check.h"

namespace gradus::ref {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Array row(const std::vector<double>& values) {
  return array({static_cast<int64_t>(values.size())}, values);
}

testing::AssertionResult near(const Array& got, const std::vector<double>& want) {
  return agrees(got.data, want, DType::f64, Tolerance{.relative = 2e-7, .of_scale = 0});
}

Array slope(std::string_view name, const std::vector<double>& x, ActivationParameters p = {}) {
  return activation_backward(name, row(x), full({static_cast<int64_t>(x.size())}, 1), p);
}

struct Named {
  const char* name;
  ActivationParameters parameters = {};
};
const Named kAll[] = {{"relu"},
                      {"relu6"},
                      {"leaky_relu", {.a = 0.01}},
                      {"elu", {.a = 1.5}},
                      {"gelu"},
                      {"gelu_tanh"},
                      {"silu"},
                      {"mish"},
                      {"sigmoid"},
                      {"tanh"},
                      {"softplus", {.a = 2, .b = 20}},
                      {"hardswish"},
                      {"hardsigmoid"}};

TEST(ReferenceActivation, FiniteDifferences) {
  // No corner within h of a value.
  const Array x =
      row({-7.3, -4.1, -2.9, -1.7, -0.6, -0.01, 0.02, 0.4, 1.3, 2.2, 3.4, 5.9, 6.3, 11});
  Array dy = x;
  for (int64_t i = 0; i < dy.numel(); ++i) dy[i] = std::cos(0.53 * (i + 1));
  for (const auto& [name, parameters] : kAll) {
    EXPECT_TRUE(agrees_with_differences(
        activation_backward(name, x, dy, parameters),
        [&](const Array& v) { return activation(name, v, parameters); }, x, dy))
        << name;
  }
}

TEST(ReferenceActivation, NanPassesThrough) {
  for (const auto& [name, parameters] : kAll) {
    EXPECT_TRUE(std::isnan(activation(name, row({kNan}), parameters)[0])) << name;
  }
}

TEST(ReferenceActivation, LimitsAtInfinity) {
  for (const auto& [name, parameters] : kAll) {
    const std::string_view n = name;
    const bool bounded = n == "relu6" || n == "sigmoid" || n == "tanh" || n == "hardsigmoid";
    const double low = n == "leaky_relu" ? -kInf : n == "elu" ? -1.5 : n == "tanh" ? -1 : 0;
    const double high = !bounded ? kInf : n == "relu6" ? 6 : 1;
    const Array y = activation(name, row({-kInf, kInf}), parameters);
    EXPECT_EQ(y[0], low) << name;
    EXPECT_EQ(y[1], high) << name;
    const Array dx = slope(name, {-kInf, kInf}, parameters);
    EXPECT_EQ(dx[0], n == "leaky_relu" ? 0.01 : 0) << name;
    EXPECT_EQ(dx[1], bounded ? 0 : 1) << name;
  }
}

TEST(ReferenceActivation, Softplus) {
  const ActivationParameters one{1, 20}, five{5, 20};
  EXPECT_TRUE(near(activation("softplus", row({20, 50, 1000, -20, -1e7}), one),
                   {20.0000000021, 50, 1000, 2.0611536e-9, 0}));
  EXPECT_TRUE(near(activation("softplus", row({20}), five), {20}));
  EXPECT_TRUE(near(slope("softplus", {85, 88, 99}, {1, 1e9}), {1, 1, 1}));
}

TEST(ReferenceActivation, Tails) {
  EXPECT_TRUE(near(slope("silu", {-30, 0, 50}), {-2.713711e-12, 0.5, 1}));
  EXPECT_TRUE(near(slope("sigmoid", {-20, 0, 20}), {2.0611536e-9, 0.25, 2.0611536e-9}));
  EXPECT_TRUE(
      near(slope("gelu", {-3.7, -4, -0.75}), {-1.4638873e-03, -5.0364966e-04, 7.7427826e-04}));
  EXPECT_NEAR(slope("gelu", {-6})[0], -3.5469e-08, 1e-12);
  EXPECT_NEAR(activation("silu", row({-12}))[0], -7.373e-5, 1e-8);
}

TEST(ReferenceActivation, Corners) {
  EXPECT_EQ(slope("relu", {-1, 0, 2}).data, (std::vector<double>{0, 0, 1}));
  EXPECT_EQ(slope("relu6", {0, 3, 6}).data, (std::vector<double>{0, 1, 0}));
  EXPECT_EQ(slope("hardswish", {-3, 3}).data, (std::vector<double>{0, 1}));
  EXPECT_EQ(slope("hardsigmoid", {-3, 3}).data, (std::vector<double>{0, 0}));
  EXPECT_EQ(slope("leaky_relu", {0}, {.a = 0.25}).data, std::vector<double>{0.25});
  EXPECT_EQ(slope("elu", {0}, {.a = 2}).data, std::vector<double>{2});
  EXPECT_THROW(activation("swoosh", row({1})), std::invalid_argument);
}

}  // namespace
}  // namespace gradus::ref
