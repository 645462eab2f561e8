// The references of softmax and log-softmax against cases known by hand and finite differences.
#include "tests/support/reference_softmax.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/reference_check.h"

namespace gradus::ref {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

testing::AssertionResult near(const Array& got, const std::vector<double>& want) {
  return agrees(got.data, want, DType::f64,
                Tolerance{.relative = 5e-6, .of_scale = 0, .absolute = 1e-12});
}

Array row(const std::vector<double>& values) {
  return array({static_cast<int64_t>(values.size())}, values);
}

TEST(ReferenceSoftmax, KnownValues) {
  EXPECT_TRUE(near(softmax(row({0, -1, -2}), 0), {0.665241, 0.244728, 0.0900306}));
  EXPECT_TRUE(near(softmax(row({378, -250, -424}), 0), {1, 0, 0}));
  EXPECT_TRUE(near(log_softmax(row({378, -250, -424}), 0), {0, -628, -802}));
  EXPECT_TRUE(near(log_softmax(row({1e4, 1e4}), 0), {-0.6931472, -0.6931472}));
  for (const int64_t n : {1, 2, 3, 17, 33}) {
    EXPECT_TRUE(near(softmax(full({n}, 0.5), 0), std::vector<double>(n, 1.0 / n)));
  }
}

TEST(ReferenceSoftmax, Infinities) {
  EXPECT_TRUE(near(softmax(row({-kInf, 0, -kInf}), 0), {0, 1, 0}));
  EXPECT_TRUE(near(log_softmax(row({-kInf, 0, -kInf}), 0), {-kInf, 0, -kInf}));
  EXPECT_TRUE(near(softmax(row({-kInf, -kInf, 1, 1}), 0), {0, 0, 0.5, 0.5}));
  EXPECT_TRUE(near(softmax(row({0, -kInf}), 0), {1, 0}));
  // A row without a finite answer stays alone.
  const Array masked = array({2, 3}, {-kInf, -kInf, -kInf, 0, -1, -2});
  EXPECT_TRUE(near(softmax(masked, 1), {kNan, kNan, kNan, 0.665241, 0.244728, 0.0900306}));
  EXPECT_TRUE(near(softmax(row({kInf, 1, 2}), 0), {kNan, kNan, kNan}));
  EXPECT_TRUE(near(log_softmax(row({kInf, 1, 2}), 0), {kNan, kNan, kNan}));
  EXPECT_TRUE(near(softmax(row({1, kNan}), 0), {kNan, kNan}));
  EXPECT_TRUE(near(softmax(row({kNan, kInf, -kInf}), 0), {kNan, kNan, kNan}));
}

TEST(ReferenceSoftmax, FiniteDifferences) {
  Array x = zeros({2, 3, 4}), dy = x;
  for (int64_t i = 0; i < x.numel(); ++i) {
    x[i] = 2 * std::sin(0.37 * (i + 1) * (i + 2));
    dy[i] = std::sin(0.53 * (i + 1) * (i + 2));
  }
  for (const int axis : {0, 1, 2, -1, -3}) {
    EXPECT_TRUE(agrees_with_differences(
        softmax_backward(x, axis, dy), [&](const Array& v) { return softmax(v, axis); }, x, dy));
    EXPECT_TRUE(agrees_with_differences(
        log_softmax_backward(x, axis, dy), [&](const Array& v) { return log_softmax(v, axis); }, x,
        dy));
  }
}

TEST(ReferenceSoftmax, EveryAxisSumsToOne) {
  Array x = zeros({2, 3, 2});
  for (int64_t i = 0; i < x.numel(); ++i) x[i] = 0.1 * i * i;
  const Array y = softmax(x, 1);
  for (int64_t n = 0; n < 2; ++n) {
    for (int64_t k = 0; k < 2; ++k) {
      EXPECT_NEAR(y.at(n, 0, k) + y.at(n, 1, k) + y.at(n, 2, k), 1, 1e-15);
    }
  }
  EXPECT_EQ(softmax(zeros({0, 3}), 1).shape, (Shape{0, 3}));
  EXPECT_EQ(softmax(zeros({3, 0}), 1).shape, (Shape{3, 0}));
}

}  // namespace
}  // namespace gradus::ref
