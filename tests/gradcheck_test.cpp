// gradcheck itself: it accepts right gradients, rejects wrong ones, and knows when it cannot tell.
#include "autograd/gradcheck.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/node.h"
#include "autograd/ops/activation.h"
#include "autograd/ops/arithmetic.h"
#include "autograd/ops/sum.h"
#include "tests/support/expect_error.h"

namespace gradus {
namespace {

using Values = std::vector<double>;

Tensor leaf(const Values& values, const Shape& shape) {
  return Tensor::from_vector(values, shape).set_requires_grad(true);
}

Tensor sample() { return leaf({0.3, -1.2, 2.5, 0.7, -0.4, 1.1}, {2, 3}); }

// y = x^2 with a backward that is off by `factor`.
struct SquareNode final : Node {
  Saved x;
  double factor;
  std::string_view name() const override { return "square"; }
  void backward(const Tensor& dy, Gradients& grads) override {
    grads.set(0, dy * x.get(name(), "x") * (2 * factor));
  }
};

Tensor square(const Tensor& x, double factor) {
  Tensor y = x.detach() * x.detach();
  if (auto node = make_node<SquareNode>(x)) {
    node->x = Saved(x);
    node->factor = factor;
    attach(y, std::move(node));
  }
  return y;
}

TEST(Gradcheck, AcceptsRightGradients) {
  const Tensor a = sample(), b = leaf({0.9, 1.7, -2.2}, {3});
  const GradcheckResult result =
      gradcheck([&] { return mean(a * b - b / (a + 5.0), {0}); }, {a, b});
  EXPECT_TRUE(result) << result.text;
  EXPECT_TRUE(result.has_power) << result.text;
  EXPECT_NE(result.text.find("input 0, f64[2,3]@cpu: ok; worst at ["), std::string::npos);
  EXPECT_NE(result.text.find("input 1, f64[3]@cpu: ok"), std::string::npos);
}

// NaN is a value like another: the gradient is wrong, not the function.
TEST(Gradcheck, SaysWhereAGradientIsNotANumber) {
  const Tensor x = leaf({-1.0, 2.0}, {2});
  const Tensor nan = Tensor::full({}, std::nan(""), {.dtype = DType::f64});
  const GradcheckResult result = gradcheck([&] { return x * nan; }, {x});
  EXPECT_FALSE(result);
  EXPECT_NE(result.text.find("WRONG, 2 of 2 elements"), std::string::npos) << result.text;
}

TEST(Gradcheck, RejectsASmallMistakeAndSaysWhere) {
  const Tensor x = sample();
  EXPECT_TRUE(gradcheck([&] { return square(x, 1.0); }, {x}));
  const GradcheckResult result = gradcheck([&] { return square(x, 1.00001); }, {x});
  EXPECT_FALSE(result);
  EXPECT_EQ(result.input, 0u);
  ASSERT_GE(result.index, 0);
  EXPECT_NEAR(result.got / result.expected, 1.00001, 1e-7);
  EXPECT_NE(result.text.find("WRONG, 6 of 6 elements; worst at ["), std::string::npos)
      << result.text;
}

TEST(Gradcheck, RejectsAMissingGradient) {
  const Tensor a = sample(), b = sample();
  const GradcheckResult result = gradcheck([&] { return a * 1.0 + b.detach(); }, {a, b});
  EXPECT_FALSE(result);
  EXPECT_EQ(result.input, 1u);
  EXPECT_EQ(result.got, 0.0);
}

TEST(Gradcheck, RejectsNan) {
  const Tensor x = sample();
  EXPECT_FALSE(gradcheck([&] { return square(x, NAN); }, {x}));
}

// Each row minus its mean, summed: the gradient is 0 whatever backward does to the mean.
TEST(Gradcheck, SaysWhenItHasNoPower) {
  const Tensor x = sample();
  const GradcheckResult result = gradcheck([&] { return sum(x - mean(x, {1}, true), {1}); }, {x});
  EXPECT_TRUE(result) << result.text;
  EXPECT_FALSE(result.has_power);
  EXPECT_NE(result.text.find("warning: no power"), std::string::npos) << result.text;
  EXPECT_TRUE(gradcheck([&] { return x - mean(x, {1}, true); }, {x}).has_power);
  const Tensor y = sample();  // one input that cannot be checked is enough, in either place
  const auto both = [&] { return sum(x - mean(x, {1}, true), {1}) + sum(y * y, {1}); };
  EXPECT_FALSE(gradcheck(both, {x, y}).has_power);
  EXPECT_FALSE(gradcheck(both, {y, x}).has_power);
}

TEST(Gradcheck, LeavesValuesAndGradientsAsTheyWere) {
  Tensor x = sample();
  x.set_grad(Tensor::full({2, 3}, 7, {.dtype = DType::f64}));
  const Values before = x.to_vector<double>();
  int calls = 0;
  EXPECT_TRUE(gradcheck([&] { return ++calls, x * x; }, {x}));
  EXPECT_EQ(calls, 2 + 2 * 6);
  EXPECT_EQ(x.to_vector<double>(), before);
  EXPECT_EQ(x.grad().to_vector<double>(), Values(6, 7.0));
  // Also when the function throws half-way.
  calls = 0;
  const auto throws = [&] {
    check(++calls != 5, "five", "stop");
    return x * x;
  };
  EXPECT_ERROR(gradcheck(throws, {x}), ErrorCode::invalid_argument, "five: stop");
  EXPECT_EQ(x.to_vector<double>(), before);
  EXPECT_EQ(x.grad().to_vector<double>(), Values(6, 7.0));
}

TEST(Gradcheck, GraphsOfBeforeGoOn) {
  const Tensor x = sample(), y = sum(x * x);
  EXPECT_TRUE(gradcheck([&] { return x * x; }, {x}));
  y.backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (x * 2).to_vector<double>());
}

TEST(Gradcheck, TakesStridedLeavesAndEmptyOnes) {
  Tensor t = Tensor::from_vector<double>({0.3, -1.2, 2.5, 0.7, -0.4, 1.1}, {2, 3}).transpose(0, 1);
  t.set_requires_grad(true);
  EXPECT_TRUE(gradcheck([&] { return t * t; }, {t}));
  const Tensor empty = leaf({}, {0, 3}), x = sample();
  EXPECT_TRUE(gradcheck([&] { return sum(empty, {0}) * sum(x); }, {empty, x}).ok);
}

// Right backwards, which would look wrong: the difference of one element moves another.
TEST(Gradcheck, RefusesInputsThatShareMemory) {
  constexpr auto invalid = ErrorCode::invalid_argument;
  const Tensor memory = Tensor::from_vector<double>({1, 2, 3, 4, 5, 6, 7, 8}, {8});
  const auto view = [&](const Shape& shape, const Strides& strides, int64_t offset) {
    return memory.as_strided(shape, strides, offset).set_requires_grad(true);
  };
  const Tensor windows = view({2, 2}, {1, 1}, 0);
  EXPECT_ERROR(gradcheck([&] { return windows * windows; }, {windows}), invalid,
               "input 0, f64[2,2]@cpu, stores one element for several");
  const Tensor a = view({3}, {1}, 0), same = view({3}, {1}, 0), next = view({3}, {1}, 2);
  for (const Tensor& b : {same, next}) {
    EXPECT_ERROR(gradcheck([&] { return a * b; }, {a, b}), invalid, "inputs 0 and 1 share memory");
  }
  const Tensor again = Tensor::wrap(memory.raw().data, {3}, {.dtype = DType::f64});
  const Tensor wrapped = again.detach().set_requires_grad(true);
  EXPECT_ERROR(gradcheck([&] { return a * wrapped; }, {a, wrapped}), invalid, "share memory");
  // One memory, but no element of it twice.
  const Tensor even = view({3}, {2}, 0), odd = view({3}, {2}, 1), woven = view({3, 2}, {2, 3}, 0);
  EXPECT_TRUE(gradcheck([&] { return even * odd; }, {even, odd}));
  EXPECT_TRUE(gradcheck([&] { return woven * woven; }, {woven}));
}

TEST(Gradcheck, RefusesWhatItCannotCheck) {
  const Tensor x = sample();
  const auto f = [&] { return x * x; };
  constexpr auto invalid = ErrorCode::invalid_argument;
  EXPECT_ERROR(gradcheck(f, {}), invalid, "gradcheck: expected at least one input");
  EXPECT_ERROR(gradcheck(f, {x * 1.0}), invalid, "expected f64 leaves");
  EXPECT_ERROR(gradcheck(f, {Tensor::ones({2}).set_requires_grad(true)}), invalid, "f32[2]@cpu");
  EXPECT_ERROR(gradcheck(f, {x, x}), invalid, "inputs 0 and 1 are one tensor");
  EXPECT_ERROR(gradcheck(f, {x}, {.h = 0}), invalid, "the step h must be positive");
  Tensor row = leaf({1, 2}, {2}).detach().expand({3, 2}).set_requires_grad(true);
  EXPECT_ERROR(gradcheck([&] { return row * row; }, {row}), invalid, "one element for several");
  EXPECT_ERROR(gradcheck([&] { return x.detach() * 2.0; }, {x}), ErrorCode::autograd,
               "backward: expected a tensor with history");
  double drift = 0;
  EXPECT_ERROR(gradcheck([&] { return x + (drift += 1); }, {x}), invalid, "different values");
  EXPECT_ERROR(gradcheck([&] { return x.to(DType::f32); }, {x}), invalid, "f64 results");
  const double steps[] = {1e-6, 1e-6};
  const Tensor two = leaf({1, 2}, {2}), dy = Tensor::ones({5}, {.dtype = DType::f64});
  EXPECT_ERROR(finite_differences([&] { return two * two; }, two, dy, steps), invalid,
               "as many results as the 5 elements of dy, got 2");
}

}  // namespace
}  // namespace gradus
