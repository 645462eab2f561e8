// The references of the losses against cases known by hand and finite differences.
#include "tests/support/reference_loss.h"

#include <gtest/gtest.h>

#include "tests/support/reference_check.h"

namespace gradus::ref {
namespace {

Array row(const std::vector<double>& values) {
  return array({static_cast<int64_t>(values.size())}, values);
}

Array ragged(const Shape& shape, double step) {
  Array result = zeros(shape);
  for (int64_t i = 0; i < result.numel(); ++i) result[i] = std::sin(step * (i + 1) * (i + 2));
  return result;
}

constexpr Reduction kReductions[] = {Reduction::none, Reduction::mean, Reduction::sum};

TEST(ReferenceLoss, SmoothL1) {
  const Array t = zeros({4}), x = row({0.25, 0.5, 2, -2});
  EXPECT_EQ(smooth_l1(x, t, 0.5, Reduction::none).data,
            (std::vector<double>{0.0625, 0.25, 1.75, 1.75}));
  EXPECT_EQ(smooth_l1_backward(x, t, 0.5, Reduction::sum, array({}, {1})).data,
            (std::vector<double>{0.5, 1, 1, -1}));
  const Array near = row({1e-8, -1, 0});
  EXPECT_EQ(smooth_l1_backward(near, zeros({3}), 0, Reduction::sum, array({}, {1})).data,
            (std::vector<double>{1, -1, 0}));
  EXPECT_EQ(smooth_l1(near, zeros({3}), 0, Reduction::none).data,
            l1(near, zeros({3}), Reduction::none).data);
}

TEST(ReferenceLoss, NllIgnoresAndWeighs) {
  const Array x = array({3, 2}, {-1, -2, -3, -4, -5, -6});
  const Array labels = row({1, 0, -100}), weight = row({0.25, 2});
  EXPECT_EQ(nll(x, labels, weight, -100, Reduction::none).data, (std::vector<double>{4, 0.75, 0}));
  EXPECT_NEAR(nll(x, labels, weight, -100, Reduction::mean)[0], 4.75 / 2.25, 1e-15);
  EXPECT_EQ(nll_backward(x, labels, weight, -100, Reduction::sum, array({}, {2})).data,
            (std::vector<double>{0, -4, -0.5, 0, 0, 0}));
  EXPECT_TRUE(std::isnan(nll(x, row({7, 7, 7}), {}, 7, Reduction::mean)[0]));
  EXPECT_THROW(nll(x, row({0, 2, 0}), {}, -100, Reduction::sum), std::invalid_argument);
}

TEST(ReferenceLoss, NllOverPixels) {
  const Array x = ragged({2, 3, 4}, 0.37);
  const Array labels = array({2, 4}, {0, 1, 2, 0, 2, 2, 1, 0});
  const Array y = nll(x, labels, {}, -100, Reduction::none);
  EXPECT_EQ(y.shape, (Shape{2, 4}));
  EXPECT_EQ(y.at(1, 2), -x.at(1, 1, 2));
}

TEST(ReferenceLoss, BinaryCrossEntropy) {
  const Array x = row({0, 1000, -1000, 1000}), t = row({1, 1, 0, 0});
  EXPECT_NEAR(bce_with_logits(x, t, {}, {}, Reduction::none)[0], 0.6931471805599453, 1e-15);
  EXPECT_EQ(bce_with_logits(x, t, {}, {}, Reduction::none)[1], 0);
  EXPECT_EQ(bce_with_logits(x, t, {}, {}, Reduction::none)[2], 0);
  EXPECT_EQ(bce_with_logits(x, t, {}, {}, Reduction::none)[3], 1000);
  EXPECT_EQ(bce_with_logits_backward(x, t, {}, {}, Reduction::sum, array({}, {1})).data,
            (std::vector<double>{-0.5, 0, 0, 1}));
}

TEST(ReferenceLoss, FiniteDifferences) {
  const Array x = ragged({2, 3, 2}, 0.37), t = ragged({2, 3, 2}, 0.19);
  const Array weight = row({0.5, 2}), pos_weight = array({3, 1}, {1, 3, 0.25});
  const Array labels = array({2, 2}, {2, 0, 1, 2}), classes = row({1, 0.5, 2});
  for (const Reduction reduction : kReductions) {
    const bool scalar = reduction != Reduction::none;
    const Array dy = scalar ? array({}, {1.7}) : ragged(x.shape, 0.53);
    EXPECT_TRUE(agrees_with_differences(
        mse_backward(x, t, reduction, dy), [&](const Array& v) { return mse(v, t, reduction); }, x,
        dy));
    EXPECT_TRUE(agrees_with_differences(
        l1_backward(x, t, reduction, dy), [&](const Array& v) { return l1(v, t, reduction); }, x,
        dy));
    EXPECT_TRUE(agrees_with_differences(
        smooth_l1_backward(x, t, 0.4, reduction, dy),
        [&](const Array& v) { return smooth_l1(v, t, 0.4, reduction); }, x, dy));
    EXPECT_TRUE(agrees_with_differences(
        bce_with_logits_backward(x, t, weight, pos_weight, reduction, dy),
        [&](const Array& v) { return bce_with_logits(v, t, weight, pos_weight, reduction); }, x,
        dy));
    const Array per_position = scalar ? dy : ragged({2, 2}, 0.53);
    EXPECT_TRUE(agrees_with_differences(
        nll_backward(x, labels, classes, 1, reduction, per_position),
        [&](const Array& v) { return nll(v, labels, classes, 1, reduction); }, x, per_position));
  }
}

TEST(ReferenceLoss, Empty) {
  const Array none = zeros({0});
  EXPECT_EQ(mse(none, none, Reduction::sum)[0], 0);
  EXPECT_TRUE(std::isnan(mse(none, none, Reduction::mean)[0]));
  EXPECT_EQ(mse(none, none, Reduction::none).shape, Shape{0});
}

}  // namespace
}  // namespace gradus::ref
