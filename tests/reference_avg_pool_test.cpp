// The references of average pooling against cases known by hand and finite differences.
#include <gtest/gtest.h>

#include "tests/support/reference_check.h"
#include "tests/support/reference_pool.h"

namespace gradus::ref {
namespace {

Array line(const std::vector<double>& values) {
  return array({1, 1, 1, static_cast<int64_t>(values.size())}, values);
}

// What overhangs the padded input is not padding.
TEST(ReferenceAvgPool, CeilMode) {
  for (const bool include : {true, false}) {
    const AvgPool2dOptions two{
        .kernel = {1, 2}, .stride = {1, 2}, .ceil_mode = true, .count_include_pad = include};
    EXPECT_EQ(avg_pool2d(line({2, 4, 6, 8, 10}), two).data, (std::vector<double>{3, 7, 10}));
    EXPECT_EQ(avg_pool2d_backward({1, 1, 1, 5}, two, line({1, 1, 1})).data,
              (std::vector<double>{0.5, 0.5, 0.5, 0.5, 1}));
  }
  AvgPool2dOptions three{.kernel = {1, 3}, .stride = {1, 2}, .padding = {0, 1}, .ceil_mode = true};
  const Array x = line({3, 6, 9, 12, 15, 18});
  EXPECT_EQ(avg_pool2d(x, three).data, (std::vector<double>{3, 9, 15, 9}));
  three.count_include_pad = false;
  EXPECT_EQ(avg_pool2d(x, three).data, (std::vector<double>{4.5, 9, 15, 18}));
  three.divisor = 2;
  EXPECT_EQ(avg_pool2d(x, three).data, (std::vector<double>{4.5, 13.5, 22.5, 9}));
}

TEST(ReferenceAvgPool, Adaptive) {
  const Array x = line({1, 2, 3, 4, 5});
  EXPECT_EQ(adaptive_avg_pool2d(x, {1, 1}).data, std::vector<double>{3});
  EXPECT_EQ(adaptive_avg_pool2d(x, {1, 2}).data, (std::vector<double>{2, 4}));
  EXPECT_EQ(adaptive_avg_pool2d(x, {1, 3}).data, (std::vector<double>{1.5, 3, 4.5}));
  EXPECT_EQ(adaptive_avg_pool2d(x, {2, 5}).data,
            (std::vector<double>{1, 2, 3, 4, 5, 1, 2, 3, 4, 5}));
  EXPECT_EQ(adaptive_avg_pool2d_backward({1, 1, 1, 5}, line({2, 3, 6})).data,
            (std::vector<double>{1, 2, 1, 4, 3}));
}

TEST(ReferenceAvgPool, FiniteDifferences) {
  Array x = zeros({2, 2, 5, 7});
  for (int64_t i = 0; i < x.numel(); ++i) x[i] = std::sin(0.37 * (i + 1) * (i + 2));
  for (const bool ceil_mode : {false, true}) {
    for (const int64_t divisor : {0, 3}) {
      const AvgPool2dOptions options{.kernel = {2, 3},
                                     .stride = {3, 2},
                                     .padding = {1, 1},
                                     .ceil_mode = ceil_mode,
                                     .divisor = divisor};
      Array dy = avg_pool2d(x, options);
      for (int64_t i = 0; i < dy.numel(); ++i) dy[i] = std::cos(0.53 * (i + 1));
      EXPECT_TRUE(agrees_with_differences(
          avg_pool2d_backward(x.shape, options, dy),
          [&](const Array& v) { return avg_pool2d(v, options); }, x, dy));
    }
  }
  Array dy = adaptive_avg_pool2d(x, {3, 4});
  for (int64_t i = 0; i < dy.numel(); ++i) dy[i] = std::cos(0.53 * (i + 1));
  EXPECT_TRUE(agrees_with_differences(
      adaptive_avg_pool2d_backward(x.shape, dy),
      [&](const Array& v) {
        return adaptive_avg_pool2d(v, {3, 4});
      },
      x, dy));
}

}  // namespace
}  // namespace gradus::ref
