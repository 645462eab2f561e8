// The references of convolution and max pooling against PyTorch, finite differences and cases
// known by hand.
#include <gtest/gtest.h>

#include "tests/support/reference_check.h"
#include "tests/support/reference_conv.h"
#include "tests/support/reference_pool.h"

namespace gradus::ref {
namespace {

Conv2dOptions conv2d_options(const Json& args) {
  return {.stride_h = args.at("stride")[0],
          .stride_w = args.at("stride")[1],
          .padding_h = args.at("padding")[0],
          .padding_w = args.at("padding")[1],
          .dilation_h = args.at("dilation")[0],
          .dilation_w = args.at("dilation")[1],
          .groups = args.at("groups")};
}

TEST(ReferenceConv2d, GoldenAndFiniteDifferences) {
  int cases = 0;
  for (const Json& json : golden_cases("conv2d")) {
    SCOPED_TRACE(json.at("name"));
    ++cases;
    const Json& inputs = json.at("inputs");
    const Array x = golden_array(inputs, "x"), w = golden_array(inputs, "w");
    const Array b = golden_array(inputs, "b"), dy = golden_array(json.at("dy"));
    const Conv2dOptions options = conv2d_options(json.at("args"));
    const int64_t taps = w.numel() / w.shape[0];
    const int64_t outputs = dy.numel() / dy.shape[1];

    EXPECT_TRUE(agrees_with_golden(conv2d(x, w, b, options), json.at("outputs").at("y"), taps + 1));
    const auto [dx, dw, db] = conv2d_backward(x, w, dy, options);
    const Json& want = json.at("gradients");
    EXPECT_TRUE(agrees_with_golden(dx, want.at("x"), taps * w.shape[0]));
    EXPECT_TRUE(agrees_with_golden(dw, want.at("w"), outputs));
    if (!b.empty()) {
      EXPECT_TRUE(agrees_with_golden(db, want.at("b"), outputs));
    }

    EXPECT_TRUE(agrees_with_differences(
        dx, [&](const Array& moved) { return conv2d(moved, w, b, options); }, x, dy));
    EXPECT_TRUE(agrees_with_differences(
        dw, [&](const Array& moved) { return conv2d(x, moved, b, options); }, w, dy));
    EXPECT_TRUE(agrees_with_differences(
        db, [&](const Array& moved) { return conv2d(x, w, moved, options); },
        b.empty() ? zeros({w.shape[0]}) : b, dy));
  }
  EXPECT_EQ(cases, 9);
}

// Small integers: every expected value is exact.
TEST(ReferenceConv2d, StrideAndDilationAreNotSwapped) {
  const Array x = array({1, 1, 1, 7}, {1, 2, 3, 4, 5, 6, 7});
  const Array w = array({1, 1, 1, 3}, {1, 10, 100});
  EXPECT_EQ(conv2d(x, w, {}, {.stride_w = 2}).data, (std::vector<double>{321, 543, 765}));
  EXPECT_EQ(conv2d(x, w, {}, {.dilation_w = 2}).data, (std::vector<double>{531, 642, 753}));
}

TEST(ReferenceConv2d, UncoveredColumnsAndGaps) {
  const Array covered = array({1, 1, 1, 6}, {1, 2, 3, 4, 5, 6});
  const auto strided = conv2d_backward(covered, array({1, 1, 1, 3}, {1, 2, 3}),
                                       array({1, 1, 1, 2}, {1, 10}), {.stride_w = 2});
  EXPECT_EQ(strided.dx.data, (std::vector<double>{1, 2, 13, 20, 30, 0}));

  const Array x = array({1, 1, 1, 8}, {1, 2, 3, 4, 5, 6, 7, 8});
  const Conv2dOptions gaps{.stride_w = 4, .padding_w = 1};
  EXPECT_EQ(conv2d(x, array({1, 1, 1, 2}, {1, 1}), {}, gaps).data, (std::vector<double>{1, 9, 8}));
  const auto spread =
      conv2d_backward(x, array({1, 1, 1, 2}, {2, 3}), array({1, 1, 1, 3}, {1, 10, 100}), gaps);
  EXPECT_EQ(spread.dw.data, (std::vector<double>{840, 51}));
  EXPECT_EQ(spread.dx.data, (std::vector<double>{3, 0, 0, 20, 30, 0, 0, 200}));
}

TEST(ReferenceConv2d, PaddingWiderThanTheKernel) {
  const Array x = array({1, 1, 1, 2}, {1, 2}), w = array({1, 1, 1, 3}, {1, 1, 1});
  const Conv2dOptions wide{.padding_w = 4};
  EXPECT_EQ(conv2d(x, w, {}, wide).data, (std::vector<double>{0, 0, 1, 3, 3, 2, 0, 0}));
  EXPECT_EQ(conv2d_backward(x, w, full({1, 1, 1, 8}, 1), wide).dx.data,
            (std::vector<double>{3, 3}));
}

TEST(ReferenceConv2d, Depthwise) {
  const Array x = array({1, 2, 1, 5}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  const Array w = array({2, 1, 1, 3}, {1, 2, 3, 4, 5, 6});
  const Conv2dOptions options{.stride_w = 2, .padding_w = 1, .groups = 2};
  EXPECT_EQ(conv2d(x, w, {}, options).data, (std::vector<double>{8, 20, 14, 72, 122, 86}));
  const auto gradients = conv2d_backward(x, w, full({1, 2, 1, 3}, 1), options);
  EXPECT_EQ(gradients.dx.data, (std::vector<double>{2, 4, 2, 4, 2, 5, 10, 5, 10, 5}));
  EXPECT_EQ(gradients.dw.data, (std::vector<double>{6, 9, 6, 16, 24, 16}));
}

TEST(ReferenceConv2d, EmptyBatchAndMisfits) {
  const Array w = full({4, 2, 3, 3}, 1);
  const Array none = zeros({0, 2, 5, 5});
  const Array y = conv2d(none, w, {}, {});
  EXPECT_EQ(y.shape, (Shape{0, 4, 3, 3}));
  EXPECT_EQ(conv2d_backward(none, w, y, {}).dw.data, zeros(w.shape).data);
  EXPECT_THROW(conv2d(zeros({1, 2, 2, 2}), w, {}, {}), std::invalid_argument);
  EXPECT_THROW(conv2d(zeros({1, 3, 5, 5}), w, {}, {}), std::invalid_argument);
}

MaxPool2dOptions max_pool2d_options(const Json& args) {
  return {.kernel_h = args.at("kernel")[0],
          .kernel_w = args.at("kernel")[1],
          .stride_h = args.at("stride")[0],
          .stride_w = args.at("stride")[1],
          .padding_h = args.at("padding")[0],
          .padding_w = args.at("padding")[1],
          .dilation_h = args.at("dilation")[0],
          .dilation_w = args.at("dilation")[1],
          .ceil_mode = args.at("ceil_mode")};
}

TEST(ReferenceMaxPool2d, GoldenAndFiniteDifferences) {
  int cases = 0;
  for (const Json& json : golden_cases("max_pool2d")) {
    SCOPED_TRACE(json.at("name"));
    ++cases;
    const Array x = golden_array(json.at("inputs"), "x"), dy = golden_array(json.at("dy"));
    const MaxPool2dOptions options = max_pool2d_options(json.at("args"));
    EXPECT_TRUE(agrees_with_golden(max_pool2d(x, options).y, json.at("outputs").at("y"), 1));
    const Array dx = max_pool2d_backward(x, dy, options);
    EXPECT_TRUE(
        agrees_with_golden(dx, json.at("gradients").at("x"), options.kernel_h * options.kernel_w));
    if (json.at("name") == "ties") continue;  // no derivative there
    EXPECT_TRUE(agrees_with_differences(
        dx, [&](const Array& moved) { return max_pool2d(moved, options).y; }, x, dy));
  }
  EXPECT_EQ(cases, 9);
}

TEST(ReferenceMaxPool2d, FirstOfEqualsWinsAndNaNPasses) {
  const double nan = std::nan("");
  const auto even = max_pool2d(full({1, 1, 2, 4}, 3), {});
  EXPECT_EQ(even.indices.data, (std::vector<double>{0, 2}));
  const auto pooled = max_pool2d(array({1, 1, 2, 4}, {5, nan, -1, 2, 9, nan, nan, 7}), {});
  EXPECT_TRUE(std::isnan(pooled.y[0]) && std::isnan(pooled.y[1]));
  EXPECT_EQ(pooled.indices.data, (std::vector<double>{1, 6}));
}

TEST(ReferenceMaxPool2d, PaddingNeverWins) {
  const Array x = full({1, 1, 5, 5}, -1);
  const MaxPool2dOptions ceil{3, 3, 3, 3, 1, 1, 1, 1, true};
  EXPECT_EQ(max_pool2d(x, ceil).y.shape, (Shape{1, 1, 2, 2}));
  EXPECT_EQ(max_pool2d(x, ceil).y.data, std::vector<double>(4, -1));
  const MaxPool2dOptions floor{2, 2, 2, 2, 1, 1, 1, 1, false};
  EXPECT_EQ(max_pool2d(x, floor).y.data, std::vector<double>(9, -1));
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(max_pool2d(full({1, 1, 2, 2}, -inf), {}).indices[0], 0);
}

}  // namespace
}  // namespace gradus::ref
