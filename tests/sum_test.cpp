// sum, mean and sum_to: values, accuracy, order of addition, gradients, empty sets.
#include "autograd/ops/sum.h"

#include <cmath>

#include "autograd/ops/arithmetic.h"
#include "core/launch.h"
#include "core/ops/sum.h"
#include "cpu/context.h"
#include "tests/support/each_device.h"
#include "tests/support/expect_error.h"
#include "tests/support/op_modes.h"

namespace gradus {
namespace {

GRADUS_TEST_OP_CASES(sum);

using Values = std::vector<double>;

Values iota(int64_t count, double first = 1) {
  Values values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<double>(i);
  return values;
}

class Sum : public test::EachDevice {
 protected:
  Tensor f64(const Values& values, const Shape& shape) {
    return Tensor::from_vector(values, shape, {.dtype = DType::f64, .device = GetParam()});
  }
  TensorOptions options(DType dtype = DType::f32) const {
    return {.dtype = dtype, .device = GetParam()};
  }
};
GRADUS_ON_EACH_DEVICE(Sum);

// Fault D048: widths that are no power of two, and one after a power of two.
TEST_P(Sum, CountsEveryElement) {
  for (const int64_t count : {1, 7, 31, 32, 33, 48, 63, 1000, 1025, 4095, 4097, 100003, 300007}) {
    const double want = static_cast<double>(count) * static_cast<double>(count + 1) / 2;
    EXPECT_EQ(sum(f64(iota(count), {count})).item<double>(), want) << count;
    EXPECT_EQ(sum(f64(iota(count), {count, 1})).item<double>(), want) << count;
    const Tensor columns = sum(f64(iota(3 * count), {count, 3}), {0});
    const double first = 3 * want - 2 * static_cast<double>(count);
    const double step = static_cast<double>(count);
    EXPECT_EQ(columns.to_vector<double>(), (Values{first, first + step, first + 2 * step}));
  }
}

// Long rows and many columns of which a view has every second element; outputs that are taken in
// another order than they lie in, of single rows and of sets that threads share.
TEST_P(Sum, LargeViewsOfAnyStrides) {
  const auto small_values = [&](const Shape& shape) {
    Values values(static_cast<size_t>(shape.numel()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 101);
    return f64(values, shape);
  };
  const std::pair<Tensor, int> views[] = {
      {small_values({3, 3000}).slice(1, 1, 3000, 2), 1},
      {small_values({5, 1300}).slice(1, 0, 1300, 2), 0},
      {small_values({3, 5, 100}).slice(1, 0, 4), 2},
      {small_values({5, 40000, 3}).permute({2, 1, 0}), 1},
  };
  for (const auto& [x, axis] : views) {
    const Values values = x.to_vector<double>();
    const auto m = static_cast<size_t>(x.size(axis));
    size_t step = 1;
    for (int inner = axis + 1; inner < x.rank(); ++inner)
      step *= static_cast<size_t>(x.size(inner));
    Values want(values.size() / m);
    for (size_t i = 0; i < values.size(); ++i) want[i / (m * step) * step + i % step] += values[i];
    EXPECT_EQ(sum(x, {axis}).to_vector<double>(), want) << to_string(x);
  }
}

// In f32 1/m would be, and the mean of ones not 1.
TEST_P(Sum, TheDivisorOfAMeanIsNotRounded) {
  for (int64_t m = 1; m <= 128; ++m)
    EXPECT_EQ(mean(Tensor::ones({m}, options())).item<float>(), 1) << m;
}

TEST_P(Sum, AnyAxesOfAnyStrides) {
  // Element (i, j, k, l) is 1000 i + 100 j + 10 k + l.
  Values values;
  const Shape shape{2, 3, 4, 5};
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 3; ++j)
      for (int k = 0; k < 4; ++k)
        for (int l = 0; l < 5; ++l) values.push_back(1000 * i + 100 * j + 10 * k + l);
  const double places[] = {1000, 100, 10, 1};
  const Tensor x = f64(values, shape);
  for (int mask = 1; mask < 16; ++mask) {
    std::vector<int> axes;
    Shape kept;
    for (int axis = 0; axis < 4; ++axis) {
      if (mask >> axis & 1) axes.push_back(axis);
      kept.append(mask >> axis & 1 ? 1 : shape[axis]);
    }
    Values want;
    double count = 120 / static_cast<double>(kept.numel());
    for (int64_t o = 0; o < kept.numel(); ++o) {
      double total = 0;
      int64_t rest = o;
      for (int axis = 3; axis >= 0; --axis) {
        const double mean_index = mask >> axis & 1 ? static_cast<double>(shape[axis] - 1) / 2
                                                   : static_cast<double>(rest % kept[axis]);
        rest /= kept[axis];
        total += places[axis] * mean_index * count;
      }
      want.push_back(total);
    }
    const Tensor orders[] = {x, x.contiguous(MemoryFormat::channels_last),
                             x.permute({3, 1, 0, 2}).clone().permute({2, 1, 3, 0}),
                             x.unsqueeze(4).expand({2, 3, 4, 5, 2}).slice(4, 1, 2).squeeze(4)};
    for (const Tensor& y : orders) {
      EXPECT_EQ(sum(y, axes, true).shape(), kept);
      EXPECT_EQ(sum(y, axes).to_vector<double>(), want) << mask;
      const Values means = mean(y, axes).to_vector<double>();
      for (size_t i = 0; i < want.size(); ++i) EXPECT_DOUBLE_EQ(means[i], want[i] / count);
    }
  }
}

TEST_P(Sum, RemovesOrKeepsAxes) {
  const Tensor x = Tensor::ones({2, 3, 4}, options());
  EXPECT_EQ(sum(x).shape(), Shape{});
  EXPECT_EQ(sum(x, {}, true).shape(), (Shape{1, 1, 1}));
  EXPECT_EQ(sum(x, {-1}).shape(), (Shape{2, 3}));
  EXPECT_EQ(sum(x, {0, 2}).shape(), (Shape{3}));
  EXPECT_EQ(sum(x, {2, 0}, true).shape(), (Shape{1, 3, 1}));
  EXPECT_EQ(sum(Tensor::full({}, 3, options())).item<float>(), 3);
  EXPECT_ERROR(sum(x, {3}), ErrorCode::invalid_argument, "sum: axis 3");
  EXPECT_ERROR(mean(x, {1, -2}), ErrorCode::invalid_argument, "mean: axis -2 is named twice");
  EXPECT_ERROR(sum(Tensor::ones({2}, options(DType::i32))), ErrorCode::invalid_argument,
               "sum: expected a floating dtype, got i32[2]@");
}

// Fault D004: a serial f32 sum of these gives a mean of 0.1710. Equal terms are the worst case for
// any order, since their rounding errors have one sign.
TEST_P(Sum, LongF32SumsStayAccurate) {
  const int64_t count = int64_t{1} << 24;
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = i % 2 ? 0.3f : 0.1f;
  const double exact = static_cast<double>(count / 2) * (double{0.1f} + double{0.3f});
  const Tensor row = Tensor::from_vector(values, {count}, options());
  const Tensor columns = row.reshape({count / 2, 2});
  EXPECT_NEAR(sum(row).item<double>() / exact, 1, 2e-6);
  EXPECT_NEAR(mean(row).item<double>(), 0.2, 4e-7);
  const Values by_column = sum(columns, {0}).to_vector<double>();
  EXPECT_NEAR(by_column[0] / (static_cast<double>(count / 2) * double{0.1f}), 1, 2e-6);
  EXPECT_NEAR(by_column[1] / (static_cast<double>(count / 2) * double{0.3f}), 1, 2e-6);
}

// Fault D031; D046 is in reduce_faults_test: neither sum nor count is ever held in 16 bits.
TEST_P(Sum, SixteenBitSumsAreKeptInF32) {
  const auto ones = [&](int64_t n, DType dtype) { return Tensor::ones({n}, options(dtype)); };
  EXPECT_EQ(sum(ones(4096, DType::bf16)).item<double>(), 4096);
  EXPECT_EQ(sum(ones(70000, DType::f16)).item<double>(), INFINITY);
  // The contract also offers the sum itself in f32.
  const Tensor x = ones(70000, DType::f16), y = Tensor::empty({1}, options());
  launch(gradus::Sum{.x = x.raw(), .y = y.raw()});
  EXPECT_EQ(y.item<double>(), 70000);
}

TEST(SumThreads, BitsDoNotDependOnThreads) {
  Cpu& context = cpu();
  const int before = context.threads();
  std::vector<float> values(3 * 70001);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 1.f / static_cast<float>(i + 1);
  const Tensor x = Tensor::from_vector(values, {3, 70001});
  std::vector<float> want[3];
  for (const int threads : {1, 2, 3, 5}) {
    context.set_threads(threads);
    for (int i = 0; i < 3; ++i) {
      const std::vector<int> axes = i == 0 ? std::vector<int>{} : std::vector<int>{i - 1};
      const std::vector<float> got = sum(x, axes).to_vector<float>();
      if (threads == 1) want[i] = got;
      EXPECT_EQ(got, want[i]) << threads << " threads, case " << i;
    }
  }
  context.set_threads(before);
}

// Fault D047; the values along an empty axis are in reduce_faults_test.
TEST_P(Sum, EmptySets) {
  const Tensor x = Tensor::empty({0, 4}, options());
  EXPECT_EQ(sum(x, {1}).shape(), Shape{0});
  EXPECT_EQ(mean(x, {1}).shape(), Shape{0});
  EXPECT_EQ(sum(x).item<double>(), 0);
  Tensor leaf = Tensor::empty({0, 4}, options()).set_requires_grad(true);
  sum(leaf).backward();
  EXPECT_EQ(leaf.grad().shape(), (Shape{0, 4}));
}

TEST_P(Sum, PassesNanAndInfinity) {
  EXPECT_TRUE(std::isnan(sum(f64({1, NAN, 2}, {3})).item<double>()));
  EXPECT_EQ(sum(f64({1, INFINITY, 2}, {3})).item<double>(), INFINITY);
  EXPECT_TRUE(std::isnan(sum(f64({-INFINITY, INFINITY}, {2})).item<double>()));
}

TEST_P(Sum, GradientIsTheExpandedUpstream) {
  Tensor x = f64(iota(6), {2, 3}).set_requires_grad(true);
  // The tensor between sees the gradient before the leaf's copy is made.
  Strides strides;
  const Tensor between = x * 1.0;
  between.register_hook([&](const Tensor& grad) {
    strides = grad.strides();
    return Tensor();
  });
  sum(between, {1}).backward(f64({5, 7}, {2}));
  EXPECT_EQ(strides[1], 0);
  EXPECT_EQ(x.grad().to_vector<double>(), (Values{5, 5, 5, 7, 7, 7}));
  x.zero_grad();
  mean(x, {0}).backward(f64({2, 4, 6}, {3}));
  EXPECT_EQ(x.grad().to_vector<double>(), (Values{1, 2, 3, 1, 2, 3}));
}

// Fault D049: the inner gradient is a stride-0 view.
TEST_P(Sum, ChainedMeans) {
  Tensor x = Tensor::zeros({3, 2, 7, 7}, options(DType::f64)).set_requires_grad(true);
  mean(mean(x, {3}), {2}).backward(f64(iota(6), {3, 2}));
  const Values grad = x.grad().to_vector<double>();
  for (size_t i = 0; i < grad.size(); ++i) {
    ASSERT_DOUBLE_EQ(grad[i], static_cast<double>(i / 49 + 1) / 49);
  }
}

TEST_P(Sum, SumToUndoesBroadcasting) {
  Tensor x = f64(iota(24), {2, 3, 4}).set_requires_grad(true);
  EXPECT_EQ(sum_to(x, {3, 1}).to_vector<double>(), (Values{68, 100, 132}));
  EXPECT_EQ(sum_to(x, {4}).to_vector<double>(), (Values{66, 72, 78, 84}));
  EXPECT_EQ(sum_to(x, {}).to_vector<double>(), (Values{300}));
  EXPECT_EQ(sum_to(x, {2, 3, 4}).to_vector<double>(), iota(24));
  sum_to(x, {3, 1}).backward(f64({1, 2, 3}, {3, 1}));
  EXPECT_EQ(x.grad().to_vector<double>(), (Values{1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3,  //
                                                  1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}));
  EXPECT_ERROR(sum_to(x, {5}), ErrorCode::invalid_argument, "sum_to: ");
  EXPECT_ERROR(sum_to(x, {7, 2, 3, 4}), ErrorCode::invalid_argument, "sum_to: ");
}

}  // namespace
}  // namespace gradus
