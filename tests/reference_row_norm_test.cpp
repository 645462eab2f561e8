// The references of group, layer and RMS norm against cases known by hand and finite differences.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/reference_check.h"
#include "tests/support/reference_norm.h"

namespace gradus::ref {
namespace {

constexpr Tolerance kDigits{.relative = 5e-6, .of_scale = 0, .absolute = 1e-6};

testing::AssertionResult near(const Array& got, const std::vector<double>& want) {
  return agrees(got.data, want, DType::f64, kDigits);
}

// Values without a pattern that a sum could cancel.
Array ragged(const Shape& shape, double step) {
  Array array = zeros(shape);
  for (int64_t i = 0; i < array.numel(); ++i) array[i] = std::sin(step * (i + 1) * (i + 2));
  return array;
}

TEST(ReferenceGroupNorm, KnownValues) {
  const Array x = array({1, 4, 2}, {1, 3, 5, 7, 2, 4, 6, 8});
  const auto out = group_norm(x, 2, array({4}, {1, 2, 3, 4}), {}, 1e-5);
  EXPECT_TRUE(
      near(out.y, {-1.34164, -0.447213, 0.894426, 2.68328, -4.02492, -1.34164, 1.78885, 5.36656}));
  EXPECT_EQ(out.mean.data, (std::vector<double>{4, 5}));
  EXPECT_EQ(out.mean.shape, (Shape{1, 2}));
  EXPECT_NEAR(out.rstd[1], 1 / std::sqrt(5 + 1e-5), 1e-15);
}

// The rank must not matter: [1,4,2,3], [1,4,6] and [1,4,1,2,3] hold the same groups.
TEST(ReferenceGroupNorm, KnownGradients) {
  const std::vector<double> values = {1, 2, 4, 8, 16, 32, 3, 1, 4, 1, 5, 9,
                                      2, 7, 1, 8, 2,  8,  1, 4, 1, 4, 2, 1};
  std::vector<double> upstream(24, 0.0);
  upstream[5] = 1;
  upstream[19] = 2;
  for (const Shape& shape : {Shape{1, 4, 2, 3}, Shape{1, 4, 6}, Shape{1, 4, 1, 2, 3}}) {
    const auto got = group_norm_backward(array(shape, values), 2, array({4}, {1, 2, 3, 4}),
                                         array(shape, upstream), 1e-5);
    EXPECT_TRUE(near(got.dgamma, {2.897166, 0, 0, 0.4385717}));
    EXPECT_EQ(got.dbeta.data, (std::vector<double>{1, 0, 0, 2}));
    const std::vector<double> first = {0.0105417,  0.00725569, 0.000683665,
                                       -0.0124604, -0.0387485, 0.0253398};
    const std::vector<double> last = {-0.200687, 2.74469,   -0.200687,
                                      -0.262663, -0.221346, -0.200687};
    const Tolerance digits{.relative = 1e-5, .of_scale = 0, .absolute = 1e-8};
    const std::span<const double> dx(got.dx.data);
    EXPECT_TRUE(agrees(dx.first(6), first, DType::f64, digits));
    EXPECT_TRUE(agrees(dx.last(6), last, DType::f64, digits));
  }
}

// A group that no upstream reaches gets exactly 0.
TEST(ReferenceGroupNorm, GroupsAreApart) {
  const auto got = group_norm_backward(array({1, 6}, {1, 2, 6, 10, 20, 60}), 2, {},
                                       array({1, 6}, {1, 0, 0, 0, 0, 0}), 1e-5);
  EXPECT_TRUE(near(got.dx, {0.176347, -0.220433, 0.0440862, 0, 0, 0}));
  EXPECT_EQ(got.dx[4], 0);
}

TEST(ReferenceGroupNorm, FiniteDifferences) {
  for (const int64_t groups : {1, 2, 4}) {
    const Array x = ragged({2, 4, 3}, 0.37), dy = ragged({2, 4, 3}, 0.53);
    const Array gamma = array({4}, {0.5, -1.5, 2, 1}), beta = array({4}, {1, 0, -1, 2});
    const auto got = group_norm_backward(x, groups, gamma, dy, 1e-3);
    EXPECT_TRUE(agrees_with_differences(
        got.dx, [&](const Array& v) { return group_norm(v, groups, gamma, beta, 1e-3).y; }, x, dy));
    EXPECT_TRUE(agrees_with_differences(
        got.dgamma, [&](const Array& v) { return group_norm(x, groups, v, beta, 1e-3).y; }, gamma,
        dy));
    EXPECT_TRUE(agrees_with_differences(
        got.dbeta, [&](const Array& v) { return group_norm(x, groups, gamma, v, 1e-3).y; }, beta,
        dy));
  }
}

TEST(ReferenceLayerNorm, KnownGradients) {
  const auto three =
      layer_norm_backward(array({2, 3}, {1, 2, 4, 0, 3, 9}), 1, array({3}, {1, 2, -1}),
                          array({2, 3}, {1, -2, 5, 0, 1, 2}), 1e-5);
  EXPECT_TRUE(near(three.dx, {1.03087, -1.54629, 0.515415, -0.305441, 0.458162, -0.152721}));
  EXPECT_TRUE(near(three.dgamma, {-1.06904, 0.26726, 9.35412}));
  EXPECT_EQ(three.dbeta.data, (std::vector<double>{1, -1, 7}));

  Array x = zeros({2, 2, 3}), dy = zeros({2, 2, 3});
  for (int64_t i = 0; i < 12; ++i) x[i] = static_cast<double>(i * i);
  dy[0] = dy[11] = 1;
  const auto leading = layer_norm_backward(x, 1, {}, dy, 1e-5);
  EXPECT_TRUE(near(leading.dx, {0.203659, -0.271545, 0.0678853, 0, 0, 0, 0, 0, 0, 0.010168,
                                -0.0193676, 0.0091996}));
  EXPECT_TRUE(near(leading.dgamma, {-0.980579, 0, 1.24464}));
  EXPECT_EQ(leading.dbeta.data, (std::vector<double>{1, 0, 1}));
}

// One value per row: the variance is 0, and nothing flows back but to beta.
TEST(ReferenceLayerNorm, OneValue) {
  const Array x = array({3, 1}, {0.1, 0.7, 123.4});
  const Array gamma = array({1}, {3}), beta = array({1}, {0.5});
  EXPECT_EQ(layer_norm(x, 1, gamma, beta, 1e-5).y.data, std::vector<double>(3, 0.5));
  const auto got = layer_norm_backward(x, 1, gamma, array({3, 1}, {1, 2, 4}), 1e-5);
  EXPECT_EQ(got.dgamma.data, std::vector<double>{0});
  EXPECT_EQ(got.dbeta.data, std::vector<double>{7});
  for (const double value : got.dx.data) EXPECT_NEAR(value, 0, 1e-15);
}

TEST(ReferenceLayerNorm, FiniteDifferences) {
  for (const int axes : {1, 2}) {
    const Array x = ragged({2, 2, 4}, 0.41), dy = ragged({2, 2, 4}, 0.59);
    const Shape suffix = axes == 1 ? Shape{4} : Shape{2, 4};
    const Array gamma = ragged(suffix, 0.23), beta = ragged(suffix, 0.31);
    const auto got = layer_norm_backward(x, axes, gamma, dy, 1e-3);
    EXPECT_TRUE(agrees_with_differences(
        got.dx, [&](const Array& v) { return layer_norm(v, axes, gamma, beta, 1e-3).y; }, x, dy));
    EXPECT_TRUE(agrees_with_differences(
        got.dgamma, [&](const Array& v) { return layer_norm(x, axes, v, beta, 1e-3).y; }, gamma,
        dy));
    EXPECT_TRUE(agrees_with_differences(
        got.dbeta, [&](const Array& v) { return layer_norm(x, axes, gamma, v, 1e-3).y; }, beta,
        dy));
  }
}

TEST(ReferenceRmsNorm, KnownValues) {
  EXPECT_TRUE(near(rms_norm(full({1, 4}, 0.02), 1, {}, 1e-6).y, std::vector<double>(4, 0.9987523)));
  const Array ones = full({4096, 8}, 1);
  EXPECT_EQ(rms_norm_backward(ones, 1, {}, ones, 0).dgamma.data, std::vector<double>(8, 4096));
  EXPECT_TRUE(rms_norm_backward(ones, 1, {}, ones, 0).dbeta.empty());
}

TEST(ReferenceRmsNorm, FiniteDifferences) {
  for (const int axes : {1, 2, 3}) {
    const Array x = ragged({2, 3, 2}, 0.29), dy = ragged({2, 3, 2}, 0.61);
    const Shape suffix = axes == 1 ? Shape{2} : axes == 2 ? Shape{3, 2} : Shape{2, 3, 2};
    const Array gamma = ragged(suffix, 0.47);
    const auto got = rms_norm_backward(x, axes, gamma, dy, 1e-3);
    EXPECT_TRUE(agrees_with_differences(
        got.dx, [&](const Array& v) { return rms_norm(v, axes, gamma, 1e-3).y; }, x, dy));
    EXPECT_TRUE(agrees_with_differences(
        got.dgamma, [&](const Array& v) { return rms_norm(x, axes, v, 1e-3).y; }, gamma, dy));
  }
}

TEST(ReferenceRowNorm, Empty) {
  const Array rows = zeros({0, 8});
  EXPECT_EQ(layer_norm(rows, 1, {}, {}, 1e-5).y.shape, rows.shape);
  EXPECT_EQ(layer_norm_backward(rows, 1, {}, rows, 1e-5).dgamma.data, std::vector<double>(8, 0));
  EXPECT_EQ(group_norm_backward(zeros({0, 4, 3}), 2, {}, zeros({0, 4, 3}), 1e-5).dbeta.data,
            std::vector<double>(4, 0));
  EXPECT_EQ(rms_norm(zeros({3, 0}), 1, {}, 1e-5).rstd.shape, Shape{3});
}

}  // namespace
}  // namespace gradus::ref
