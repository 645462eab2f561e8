// The reference of local response normalization against cases known by hand and differences.
#include "tests/support/reference_lrn.h"

#include <gtest/gtest.h>

#include "tests/support/reference_check.h"

namespace gradus::ref {
namespace {

testing::AssertionResult near(const Array& got, const std::vector<double>& want) {
  return agrees(got.data, want, DType::f64,
                Tolerance{.relative = 2e-6, .of_scale = 0, .absolute = 1e-12});
}

Array channels(const std::vector<double>& values) {
  return array({1, static_cast<int64_t>(values.size())}, values);
}

TEST(ReferenceLrn, KnownValues) {
  // An even window holds one channel more below: c-2 .. c+1.
  EXPECT_TRUE(near(local_response_norm(channels({1, 2, 3, 4, 5}), {4, 4, 1, 1}).y,
                   {0.1666667, 0.1333333, 0.09677419, 0.07272727, 0.09803922}));
  // alpha is divided by the size.
  EXPECT_TRUE(near(local_response_norm(channels({1, 2, 3}), {3, 0.3, 0.75, 2}).y,
                   {0.502973, 0.798768, 1.22528}));
  // Channels outside count as 0, and the divisor stays the size.
  EXPECT_TRUE(near(local_response_norm(channels({1, 1, 1, 1}), {3, 3, 1, 0}).y,
                   {0.5, 1.0 / 3, 1.0 / 3, 0.5}));
}

// A window wider than the channels.
TEST(ReferenceLrn, WideWindow) {
  const Array x = channels({1, 2, 3});
  const LrnOptions wide{7, 7, 1, 1};
  const auto out = local_response_norm(x, wide);
  EXPECT_EQ(out.denom.data, std::vector<double>(3, 15.0));
  EXPECT_TRUE(near(out.y, {0.06666667, 0.1333333, 0.2}));
  EXPECT_TRUE(near(local_response_norm_backward(x, wide, channels({1, 0, 0})),
                   {0.05777778, -0.01777778, -0.02666667}));
}

TEST(ReferenceLrn, FiniteDifferences) {
  Array x = zeros({2, 5, 3}), dy = x;
  for (int64_t i = 0; i < x.numel(); ++i) {
    x[i] = std::sin(0.37 * (i + 1) * (i + 2));
    dy[i] = std::sin(0.53 * (i + 1) * (i + 2));
  }
  for (const int64_t size : {1, 2, 3, 4, 5, 6, 11}) {
    const LrnOptions options{size, 1.5, 0.75, 1};
    EXPECT_TRUE(agrees_with_differences(
        local_response_norm_backward(x, options, dy),
        [&](const Array& v) { return local_response_norm(v, options).y; }, x, dy))
        << size;
  }
}

TEST(ReferenceLrn, Empty) {
  const Array x = zeros({0, 3, 2});
  EXPECT_EQ(local_response_norm(x, {.size = 3}).y.shape, x.shape);
  EXPECT_EQ(local_response_norm_backward(x, {.size = 3}, x).shape, x.shape);
}

}  // namespace
}  // namespace gradus::ref
