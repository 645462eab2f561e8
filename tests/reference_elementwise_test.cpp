// The references of arithmetic, ReLU, dropout, reductions, products and the loss.
#include <gtest/gtest.h>

#include "tests/support/reference.h"
#include "tests/support/reference_check.h"

namespace gradus::ref {
namespace {

TEST(ReferenceMatmul, GoldenAndFiniteDifferences) {
  int cases = 0;
  for (const Json& json : golden_cases("linear")) {
    SCOPED_TRACE(json.at("name"));
    ++cases;
    const Json &inputs = json.at("inputs"), &want = json.at("gradients");
    const Json& want_y = json.at("outputs").at("y");
    const Array dy = golden_array(json.at("dy")), b = golden_array(inputs, "b");
    if (json.at("name").get<std::string>().starts_with("matmul")) {
      const Array a = golden_array(inputs, "a");
      const int64_t m = dy.numel();
      EXPECT_TRUE(agrees_with_golden(matmul(a, b), want_y, a.shape[a.shape.rank() - 1]));
      const auto [da, db] = matmul_backward(a, b, dy);
      EXPECT_TRUE(agrees_with_golden(da, want.at("a"), m));
      EXPECT_TRUE(agrees_with_golden(db, want.at("b"), m));
      EXPECT_TRUE(agrees_with_differences(
          da, [&](const Array& moved) { return matmul(moved, b); }, a, dy));
      EXPECT_TRUE(agrees_with_differences(
          db, [&](const Array& moved) { return matmul(a, moved); }, b, dy));
      continue;
    }
    const Array x = golden_array(inputs, "x"), w = golden_array(inputs, "w");
    const int64_t rows = dy.numel() / w.shape[0];
    EXPECT_TRUE(agrees_with_golden(linear(x, w, b), want_y, w.shape[1] + 1));
    const auto [dx, dw, db] = linear_backward(x, w, dy);
    EXPECT_TRUE(agrees_with_golden(dx, want.at("x"), w.shape[0]));
    EXPECT_TRUE(agrees_with_golden(dw, want.at("w"), rows));
    if (!b.empty()) {
      EXPECT_TRUE(agrees_with_golden(db, want.at("b"), rows));
    }
    EXPECT_TRUE(agrees_with_differences(
        dx, [&](const Array& moved) { return linear(moved, w, b); }, x, dy));
    EXPECT_TRUE(agrees_with_differences(
        dw, [&](const Array& moved) { return linear(x, moved, b); }, w, dy));
    EXPECT_TRUE(agrees_with_differences(
        db, [&](const Array& moved) { return linear(x, w, moved); }, zeros({w.shape[0]}), dy));
  }
  EXPECT_EQ(cases, 6);
}

TEST(ReferenceReduce, GoldenAndFiniteDifferences) {
  int cases = 0;
  for (const Json& json : golden_cases("reduce")) {
    SCOPED_TRACE(json.dump());
    ++cases;
    const bool is_mean = json.at("name") == "mean";
    const auto axes = json.at("args").at("axes").get<std::vector<int>>();
    const bool keepdim = json.at("args").at("keepdim");
    const Array x = golden_array(json.at("inputs"), "x"), dy = golden_array(json.at("dy"));
    const auto forward = [&](const Array& moved) {
      return is_mean ? mean(moved, axes, keepdim) : sum(moved, axes, keepdim);
    };
    EXPECT_TRUE(agrees_with_golden(forward(x), json.at("outputs").at("y"), x.numel()));
    const Array dx = is_mean ? mean_backward(x.shape, dy, axes) : sum_backward(x.shape, dy, axes);
    EXPECT_TRUE(agrees_with_golden(dx, json.at("gradients").at("x"), 1));
    EXPECT_TRUE(agrees_with_differences(dx, forward, x, dy));
  }
  EXPECT_EQ(cases, 10);
}

TEST(ReferenceReduce, AllAxesAndEmptySets) {
  const Array x = array({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(sum(x, {}).data, std::vector<double>{21});
  EXPECT_EQ(sum(x, {}).shape, Shape{});
  EXPECT_EQ(sum(x, {}, true).shape, (Shape{1, 1}));
  EXPECT_EQ(sum(zeros({0, 4}), {0}).data, std::vector<double>(4, 0));
  EXPECT_TRUE(std::isnan(mean(zeros({0, 4}), {0})[3]));
  EXPECT_EQ(sum(zeros({0, 4}), {1}).shape, Shape{0});
  EXPECT_THROW(sum(x, {2}), std::invalid_argument);
}

using Forward = Array (*)(const Array&, const Array&);
using Backward = PairGradients (*)(const Array&, const Array&, const Array&);

TEST(ReferenceArithmetic, BroadcastAndFiniteDifferences) {
  const std::pair<Forward, Backward> ops[] = {
      {add, add_backward}, {sub, sub_backward}, {mul, mul_backward}, {div, div_backward}};
  const double want[][6] = {{5, 4, 2.5, 8, 7, 5.5},
                            {-3, -2, -0.5, 0, 1, 2.5},
                            {4, 3, 1.5, 16, 12, 6},
                            {0.25, 1. / 3, 1 / 1.5, 1, 4. / 3, 4 / 1.5}};
  const Array a = array({2, 1}, {1, 4}), b = array({3}, {4, 3, 1.5});
  const Array dy = array({2, 3}, {1, -2, 0.5, 3, 0.25, -1});
  for (int i = 0; i < 4; ++i) {
    SCOPED_TRACE(i);
    const auto [forward, backward] = ops[i];
    const Array y = forward(a, b);
    EXPECT_EQ(y.shape, dy.shape);
    EXPECT_EQ(y.data, std::vector<double>(want[i], want[i] + 6));
    const auto [da, db] = backward(a, b, dy);
    EXPECT_TRUE(agrees_with_differences(
        da, [&](const Array& moved) { return forward(moved, b); }, a, dy));
    EXPECT_TRUE(agrees_with_differences(
        db, [&](const Array& moved) { return forward(a, moved); }, b, dy));
  }
  EXPECT_THROW(add(zeros({2}), zeros({3})), std::invalid_argument);
  EXPECT_EQ(add(zeros({0, 3}), zeros({1, 3})).shape, (Shape{0, 3}));
}

TEST(ReferenceRelu, ValuesAndGradient) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  const Array x = array({5}, {nan, -1, 2, -0.0, inf}), dy = array({5}, {3, 4, 5, 6, 7});
  const Array y = relu(x), dx = relu_backward(x, dy);
  EXPECT_TRUE(agrees(y.data, std::vector<double>{nan, 0, 2, 0, inf}, DType::f64, Tolerance{}));
  EXPECT_EQ(dx.data, (std::vector<double>{3, 0, 5, 0, 7}));
}

TEST(ReferenceDropout, ScalesWhatIsKept) {
  const Array x = array({4}, {1, -2, 3, 4}), mask = array({4}, {1, 0, 0, 1});
  EXPECT_EQ(dropout(x, mask, 0.75).data, (std::vector<double>{4, 0, 0, 16}));
  EXPECT_EQ(dropout(x, full({4}, 0), 1).data, std::vector<double>(4, 0));
  const Array dy = array({4}, {1, 2, 3, -1});
  EXPECT_TRUE(agrees_with_differences(
      dropout_backward(dy, mask, 0.3),
      [&](const Array& moved) { return dropout(moved, mask, 0.3); }, x, dy));
}

CrossEntropyOptions cross_entropy_options(const Json& json) {
  const Json& args = json.at("args");
  const std::string reduction = args.at("reduction");
  return {.reduction = reduction == "none"   ? Reduction::none
                       : reduction == "mean" ? Reduction::mean
                                             : Reduction::sum,
          .label_smoothing = args.at("label_smoothing"),
          .ignore_index = args.at("ignore_index"),
          .weight = golden_array(json.at("inputs"), "weight")};
}

TEST(ReferenceCrossEntropy, GoldenAndFiniteDifferences) {
  int cases = 0;
  for (const Json& json : golden_cases("cross_entropy")) {
    SCOPED_TRACE(json.at("name"));
    ++cases;
    const Array x = golden_array(json.at("inputs"), "logits");
    const Array labels = golden_array(json.at("inputs"), "labels"),
                dy = golden_array(json.at("dy"));
    const CrossEntropyOptions options = cross_entropy_options(json);
    const auto forward = [&](const Array& moved) { return cross_entropy(moved, labels, options); };
    EXPECT_TRUE(agrees_with_golden(forward(x), json.at("outputs").at("y"), x.numel()));
    const Array dx = cross_entropy_backward(x, labels, dy, options);
    EXPECT_TRUE(agrees_with_golden(dx, json.at("gradients").at("logits"), x.shape[1]));
    EXPECT_TRUE(agrees_with_differences(dx, forward, x, dy));
  }
  EXPECT_EQ(cases, 15);
}

TEST(ReferenceCrossEntropy, KnownValuesAndEdges) {
  const Array x = array({2, 2}, {1, 2, 0.5, -1.5}), labels = array({2}, {-100, 0});
  CrossEntropyOptions options{.label_smoothing = 0.1, .weight = array({2}, {0.25, 0.75})};
  EXPECT_NEAR(cross_entropy(x, labels, options)[0], 0.4396208, 5e-8);
  options.label_smoothing = 0;
  EXPECT_NEAR(cross_entropy(x, labels, options)[0], 0.1269280, 5e-8);

  const Array ignored = full({2}, -100);
  EXPECT_TRUE(std::isnan(cross_entropy(x, ignored, options)[0]));
  EXPECT_EQ(cross_entropy_backward(x, ignored, full({}, 1), options).data,
            std::vector<double>(4, 0));
  EXPECT_THROW(cross_entropy(x, array({2}, {0, 2}), {}), std::invalid_argument);
  const Array far = array({1, 3}, {378, -250, -424});
  EXPECT_EQ(cross_entropy(far, array({1}, {1}), {})[0], 628);
}

}  // namespace
}  // namespace gradus::ref
