// The references of the reductions against cases known by hand and finite differences.
#include "tests/support/reference_reduce.h"

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

testing::AssertionResult same(const Array& got, const std::vector<double>& want) {
  return agrees(got.data, want, DType::f64, Tolerance{.relative = 1e-15, .of_scale = 0});
}

struct Pair {
  const char* name;
  Array (*forward)(const Array&, const std::vector<int>&);
  Array (*backward)(const Array&, const Array&, const std::vector<int>&);
};

using Axes = std::vector<int>;
const Pair kPairs[] = {
    {"sum", [](const Array& x, const Axes& a) { return sum(x, a); },
     [](const Array& x, const Array& dy, const Axes& a) { return sum_backward(x.shape, dy, a); }},
    {"mean", [](const Array& x, const Axes& a) { return mean(x, a); },
     [](const Array& x, const Array& dy, const Axes& a) { return mean_backward(x.shape, dy, a); }},
    {"max", [](const Array& x, const Axes& a) { return max(x, a); }, max_backward},
    {"min", [](const Array& x, const Axes& a) { return min(x, a); }, min_backward},
    {"prod", [](const Array& x, const Axes& a) { return prod(x, a); }, prod_backward},
    {"norm2", [](const Array& x, const Axes& a) { return norm2(x, a); }, norm2_backward},
    {"logsumexp", [](const Array& x, const Axes& a) { return logsumexp(x, a); },
     logsumexp_backward},
    {"var", [](const Array& x, const Axes& a) { return var(x, a, 1); },
     [](const Array& x, const Array& dy, const Axes& a) { return var_backward(x, dy, a, 1); }},
    {"var_half", [](const Array& x, const Axes& a) { return var(x, a, 0.5); },
     [](const Array& x, const Array& dy, const Axes& a) { return var_backward(x, dy, a, 0.5); }},
    {"std", [](const Array& x, const Axes& a) { return std_(x, a, 0); },
     [](const Array& x, const Array& dy, const Axes& a) { return std_backward(x, dy, a, 0); }},
};

TEST(ReferenceReduce, FiniteDifferences) {
  Array x = zeros({2, 3, 4});
  for (int64_t i = 0; i < x.numel(); ++i) x[i] = 1.5 * std::sin(0.37 * (i + 1) * (i + 2));
  for (const Pair& pair : kPairs) {
    for (const Axes& axes : {Axes{0}, Axes{-1}, Axes{0, 2}, Axes{1, 2}, Axes{}}) {
      SCOPED_TRACE(pair.name);
      Array dy = pair.forward(x, axes);
      for (int64_t i = 0; i < dy.numel(); ++i) dy[i] = std::cos(0.53 * (i + 1));
      EXPECT_TRUE(agrees_with_differences(
          pair.backward(x, dy, axes), [&](const Array& v) { return pair.forward(v, axes); }, x,
          dy));
    }
  }
}

TEST(ReferenceReduce, Shapes) {
  const Array x = zeros({2, 3, 4});
  EXPECT_EQ(max(x, {0, 2}).shape, Shape{3});
  EXPECT_EQ(max(x, {0, 2}, true).shape, (Shape{1, 3, 1}));
  EXPECT_EQ(var(x, {-1}, 1).shape, (Shape{2, 3}));
  EXPECT_EQ(prod(x, {}, true).shape, (Shape{1, 1, 1}));
  EXPECT_EQ(logsumexp(x, {}).shape, Shape{});
}

TEST(ReferenceReduce, TiesShareEqually) {
  EXPECT_TRUE(same(max_backward(row({2, 1, 2, 2}), row({3}), {0}), {1, 0, 1, 1}));
  EXPECT_TRUE(same(min_backward(row({2, 1, 1, 2}), row({3}), {0}), {0, 1.5, 1.5, 0}));
  EXPECT_TRUE(same(max(row({1, kNan}), {0}), {kNan}));
  EXPECT_TRUE(same(min(row({kNan, 1}), {0}), {kNan}));
  EXPECT_TRUE(same(max_backward(row({kNan, 1, kNan}), row({4}), {0}), {2, 0, 2}));
}

TEST(ReferenceReduce, ProdWithZeros) {
  EXPECT_TRUE(same(prod_backward(row({3, 0, 5, 2}), row({1}), {0}), {0, 30, 0, 0}));
  EXPECT_TRUE(same(prod_backward(row({0, 4, 0}), row({1}), {0}), {0, 0, 0}));
  EXPECT_TRUE(same(prod_backward(array({3, 2}, {1, 2, 0, 7, 0, 0}), row({1, 1, 1}), {1}),
                   {2, 1, 7, 0, 0, 0}));
  EXPECT_TRUE(same(prod_backward(row({0}), array({}, {1}), {0}), {1}));
}

TEST(ReferenceReduce, ZeroNormAndDeviation) {
  EXPECT_TRUE(same(norm2_backward(row({0, 0}), row({5}), {0}), {0, 0}));
  EXPECT_TRUE(same(norm2(row({3, 4}), {0}), {5}));
  EXPECT_TRUE(same(norm2_backward(row({3, 4}), row({5}), {0}), {3, 4}));
  EXPECT_TRUE(same(std_backward(row({7, 7, 7}), row({5}), {0}, 1), {0, 0, 0}));
}

// PyTorch divides by max(0, m - correction).
TEST(ReferenceReduce, Corrections) {
  const Array x = row({1, 2, 3, 6});
  EXPECT_TRUE(same(var(x, {0}, 0), {3.5}));
  EXPECT_TRUE(same(var(x, {0}, 1), {14.0 / 3}));
  EXPECT_TRUE(same(std_(x, {0}, 0), {std::sqrt(3.5)}));
  EXPECT_TRUE(same(var(x, {0}, 4), {kInf}));
  EXPECT_TRUE(same(var(x, {0}, 7), {kInf}));
  EXPECT_TRUE(same(var(row({5}), {0}, 1), {kNan}));
  EXPECT_TRUE(same(var(row({5}), {0}, 0), {0}));
}

TEST(ReferenceReduce, LogSumExpAtInfinity) {
  EXPECT_TRUE(same(logsumexp(row({-kInf, -kInf}), {0}), {-kInf}));
  EXPECT_TRUE(same(logsumexp(row({-kInf, 0}), {0}), {0}));
  EXPECT_TRUE(same(logsumexp(row({kInf, 0}), {0}), {kInf}));
  EXPECT_TRUE(same(logsumexp(row({kInf, kNan}), {0}), {kNan}));
  EXPECT_TRUE(same(logsumexp(row({1e4, 1e4}), {0}), {1e4 + std::log(2)}));
}

TEST(ReferenceReduce, Empty) {
  const Array x = zeros({0, 4});
  EXPECT_TRUE(same(sum(x, {0}), {0, 0, 0, 0}));
  EXPECT_TRUE(same(prod(x, {0}), {1, 1, 1, 1}));
  EXPECT_TRUE(same(mean(x, {0}), {kNan, kNan, kNan, kNan}));
  EXPECT_TRUE(same(var(x, {0}, 1), {kNan, kNan, kNan, kNan}));
  EXPECT_TRUE(same(std_(x, {0}, 0), {kNan, kNan, kNan, kNan}));
  EXPECT_TRUE(same(norm2(x, {0}), {0, 0, 0, 0}));
  EXPECT_TRUE(same(logsumexp(x, {0}), {-kInf, -kInf, -kInf, -kInf}));
  EXPECT_THROW(max(x, {0}), std::invalid_argument);
  EXPECT_THROW(min(x, {0}), std::invalid_argument);
  EXPECT_EQ(max(x, {1}).shape, Shape{0});
  EXPECT_EQ(max_backward(x, zeros({0}), {1}).shape, x.shape);
}

}  // namespace
}  // namespace gradus::ref
