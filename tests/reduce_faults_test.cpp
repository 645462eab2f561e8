// Faults that frameworks like this one have had in reductions, by family.
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/ops/arithmetic.h"
#include "autograd/ops/reduce.h"
#include "autograd/ops/sum.h"
#include "tests/support/each_device.h"
#include "tests/support/expect_error.h"

namespace gradus {
namespace {

using Values = std::vector<double>;
constexpr double kInf = INFINITY;
constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16};

class ReduceFaults : public test::EachDevice {
 protected:
  Tensor make(const Values& values, const Shape& shape, DType dtype) {
    return Tensor::from_vector(values, shape, {.dtype = dtype, .device = GetParam()});
  }
  Tensor leaf(const Values& values, const Shape& shape, DType dtype) {
    return make(values, shape, dtype).set_requires_grad(true);
  }
  Tensor full(const Shape& shape, double value, DType dtype) {
    return Tensor::full(shape, value, {.dtype = dtype, .device = GetParam()});
  }
};
GRADUS_ON_EACH_DEVICE(ReduceFaults);

void expect_values(const Tensor& got, const Values& want) {
  const Values values = got.to_vector<double>();
  ASSERT_EQ(values.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(want[i])) {
      EXPECT_TRUE(std::isnan(values[i])) << "[" << i << "] is " << values[i];
    } else {
      EXPECT_EQ(values[i], want[i]) << "[" << i << "]";
    }
  }
}

TEST_P(ReduceFaults, D040_NanWinsInMaxAndMin) {
  for (const DType dtype : kDTypes) {
    for (const Values& row : {Values{NAN, 1}, Values{1, NAN}, Values{NAN, kInf}}) {
      for (const int64_t length : {2, 3, 40, 1027}) {
        // The NaN in front and at the back, along rows and along columns.
        Values values(static_cast<size_t>(length), row[0]);
        values.back() = row[1];
        expect_values(max(make(values, {length}, dtype)), {NAN});
        expect_values(min(make(values, {length, 1}, dtype), {0}), {NAN});
        Values columns;
        for (const double value : values) columns.insert(columns.end(), {value, 3});
        expect_values(max(make(columns, {length, 2}, dtype), {0}), {NAN, 3});
        expect_values(min(make(columns, {length, 2}, dtype), {0}), {NAN, 3});
      }
    }
    // The NaNs get the gradient.
    Tensor x = leaf({1, NAN, 5, NAN}, {4}, dtype);
    max(x).backward(full({}, 3, dtype));
    expect_values(x.grad(), {0, 1.5, 0, 1.5});
  }
}

TEST_P(ReduceFaults, TiesShareTheGradientEqually) {
  for (const DType dtype : kDTypes) {
    Tensor x = leaf({4, 1, 4, 1, 4, 4}, {6}, dtype);
    max(x).backward(full({}, 2, dtype));
    expect_values(x.grad(), {0.5, 0, 0.5, 0, 0.5, 0.5});
    x.zero_grad();
    min(x).backward(full({}, 2, dtype));
    expect_values(x.grad(), {0, 1, 0, 1, 0, 0});
    Tensor infinite = leaf({-kInf, -kInf, 0.0, -0.0, kInf, kInf}, {3, 2}, dtype);
    max(infinite, {1}).backward(full({3}, 1, dtype));
    expect_values(infinite.grad(), {0.5, 0.5, 0.5, 0.5, 0.5, 0.5});
  }
}

TEST_P(ReduceFaults, D043_ProdWithZeros) {
  for (const DType dtype : kDTypes) {
    Tensor one = leaf({3, 0, 5, 2}, {4}, dtype);
    Tensor y = prod(one);
    EXPECT_EQ(y.item<double>(), 0);
    y.backward();
    expect_values(one.grad(), {0, 30, 0, 0});
    Tensor two = leaf({0, 4, 0}, {3}, dtype);
    prod(two).backward();
    expect_values(two.grad(), {0, 0, 0});
    Tensor rows = leaf({1, 2, 0, 7, 0, 0}, {3, 2}, dtype);
    prod(rows, {1}).backward(full({3}, 1, dtype));
    expect_values(rows.grad(), {2, 1, 7, 0, 0, 0});
    Tensor columns = leaf({1, 0, 0, 2, 7, 0}, {2, 3}, dtype);
    prod(columns, {0}).backward(full({3}, 1, dtype));
    expect_values(columns.grad(), {2, 7, 0, 1, 0, 0});
  }
}

// Infinity times zero is no number, wherever the two are.
TEST_P(ReduceFaults, ProdOfZeroAndInfinity) {
  for (const DType dtype : kDTypes) {
    for (const size_t zero : {0, 1, 40}) {
      Values values(41, 1);
      values[20] = kInf;
      values[zero] = 0;
      EXPECT_TRUE(std::isnan(prod(make(values, {41}, dtype)).item<double>())) << zero;
      values[zero] = -2;
      EXPECT_EQ(prod(make(values, {41}, dtype)).item<double>(), -kInf) << zero;
    }
  }
}

TEST_P(ReduceFaults, D044_ProdOfOneElement) {
  for (const DType dtype : kDTypes) {
    Tensor x = leaf({0}, {1}, dtype);
    prod(x, {0}).backward();
    EXPECT_EQ(x.grad().shape(), Shape{1});
    expect_values(x.grad(), {1});
    Tensor square = leaf({0}, {1, 1}, dtype);
    prod(square, {0, 1}).backward();
    EXPECT_EQ(square.grad().shape(), (Shape{1, 1}));
    expect_values(square.grad(), {1});
  }
}

// A local derivative that is infinite, times whatever comes from above: the root in norm2 and std.
TEST_P(ReduceFaults, D045_RootsAtZero) {
  for (const DType dtype : kDTypes) {
    for (const double upstream : {0.0, 1.0}) {
      Tensor x = leaf({0, 0, 3, 4}, {2, 2}, dtype);
      Tensor y = norm2(x, {1});
      expect_values(y, {0, 5});
      y.backward(make({upstream, 5}, {2}, dtype));
      expect_values(x.grad(), {0, 0, 3, 4});
      Tensor constant_row = leaf({7, 7, 7, 1, 2, 3}, {2, 3}, dtype);
      y = std(constant_row, {1});
      expect_values(y, {0, 1});
      y.backward(make({upstream, 2}, {2}, dtype));
      expect_values(constant_row.grad(), {0, 0, 0, -1, 0, 1});
    }
  }
}

TEST_P(ReduceFaults, D046_SixteenBitAccumulation) {
  for (const int64_t count : {65520, 100000}) {
    EXPECT_EQ(mean(full({count}, 1, DType::f16)).item<double>(), 1.0);
    EXPECT_EQ(var(full({count}, 1, DType::f16)).item<double>(), 0.0);
    EXPECT_EQ(std(full({count}, 1, DType::f16), {}, 0).item<double>(), 0.0);
  }
  EXPECT_EQ(mean(full({3}, 40000, DType::f16)).item<double>(), 40000);
  // Squares and partial products beyond the range of f16, results within it.
  EXPECT_EQ(norm2(full({4}, 8000, DType::f16)).item<double>(), 16000);
  EXPECT_EQ(prod(make({512, 512, 512, 0.0009765625, 0.0009765625}, {5}, DType::f16)).item<double>(),
            128);
  // max counts more ties than f16 can, or bf16 can tell apart.
  for (const DType dtype : {DType::f16, DType::bf16}) {
    Tensor x = full({70000}, 2, dtype).set_requires_grad(true);
    max(x).backward(full({}, 35000, dtype));
    expect_values(x.grad().slice(0, 0, 70000, 69999), {0.5, 0.5});
  }
}

TEST_P(ReduceFaults, D047_EmptySets) {
  for (const DType dtype : kDTypes) {
    const Tensor x = make({}, {0, 4}, dtype);
    expect_values(sum(x, {0}), Values(4, 0));
    expect_values(prod(x, {0}), Values(4, 1));
    expect_values(norm2(x, {0}), Values(4, 0));
    expect_values(mean(x, {0}), Values(4, NAN));
    expect_values(var(x, {0}), Values(4, NAN));
    expect_values(std(x, {0}), Values(4, NAN));
    expect_values(logsumexp(x, {0}), Values(4, -kInf));
    EXPECT_ERROR(max(x, {0}), ErrorCode::invalid_argument,
                 "max: expected at least one element along the reduced axes");
    EXPECT_ERROR(min(x), ErrorCode::invalid_argument,
                 "min: expected at least one element along the reduced axes");
    for (const auto& reduce : {max, min, prod, norm2, logsumexp}) {
      EXPECT_EQ(reduce(x, {1}, false).shape(), Shape{0});
      EXPECT_EQ(reduce(x, {1}, true).shape(), (Shape{0, 1}));
    }
    EXPECT_EQ(var(x, {1}).shape(), Shape{0});
    for (const auto& reduce : {prod, norm2, logsumexp}) {
      Tensor leaf = make({}, {0, 4}, dtype).set_requires_grad(true);
      reduce(leaf, {0}, false).backward(full({4}, 1, dtype));
      EXPECT_EQ(leaf.grad().shape(), (Shape{0, 4}));
    }
    Tensor leaf = make({}, {0, 4}, dtype).set_requires_grad(true);
    max(leaf, {1}).backward(make({}, {0}, dtype));
    EXPECT_EQ(leaf.grad().shape(), (Shape{0, 4}));
  }
}

// Those of sums are in sum_test.
TEST_P(ReduceFaults, D048_WidthsThatAreNoPowerOfTwo) {
  for (const int64_t count : {1, 7, 31, 32, 33, 48, 63, 255, 257, 1000, 1025, 4097, 100003}) {
    Values rising, columns;
    for (int64_t i = 1; i <= count; ++i) {
      rising.push_back(static_cast<double>(i));
      columns.insert(columns.end(), {static_cast<double>(i), -static_cast<double>(i), 1});
    }
    const double n = static_cast<double>(count);
    const Tensor x = make(rising, {count}, DType::f64);
    EXPECT_EQ(max(x).item<double>(), n);
    EXPECT_EQ(min(-x).item<double>(), -n);
    EXPECT_DOUBLE_EQ(norm2(x).item<double>(), std::sqrt(n * (n + 1) * (2 * n + 1) / 6));
    EXPECT_NEAR(var(x, {}, 0).item<double>() / ((n * n - 1) / 12 + (n == 1)), n > 1, 1e-13);
    EXPECT_EQ(prod(full({count}, -1, DType::f64)).item<double>(), count % 2 ? -1 : 1);
    EXPECT_DOUBLE_EQ(logsumexp(full({count}, 0, DType::f64)).item<double>(), std::log(n));
    const Tensor by_column = make(columns, {count, 3}, DType::f64);
    expect_values(max(by_column, {0}), {n, -1, 1});
    expect_values(min(by_column, {0}), {1, -n, 1});
  }
}

TEST_P(ReduceFaults, D049_UpstreamThatIsNotContiguous) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    Tensor x = full({3, 2, 7, 7}, 0, dtype).set_requires_grad(true);
    mean(mean(x, {3}), {2}).backward(make({1, 2, 3, 4, 5, 6}, {3, 2}, dtype));
    const Values grad = x.grad().to_vector<double>();
    for (size_t i = 0; i < grad.size(); ++i) {
      ASSERT_NEAR(grad[i], static_cast<double>(i / 49 + 1) / 49, 1e-7);
    }
    // The sum hands a stride-0 view to the reduction below it, the transpose a strided one.
    Tensor z = leaf({3, 4, 6, 8}, {2, 2}, dtype);
    sum(norm2(z, {1})).backward();
    const Values norm_grad = z.grad().to_vector<double>();
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(norm_grad[i], i % 2 ? 0.8 : 0.6, 1e-7);
    Tensor w = leaf({0, 1, 2, 3, 4, 5, 6, 7}, {2, 2, 2}, dtype);
    max(w, {2}).transpose(0, 1).backward(make({1, 2, 3, 4}, {2, 2}, dtype));
    expect_values(w.grad(), {0, 1, 0, 3, 0, 2, 0, 4});
  }
}

// Variance about the mean, of values that are large against their spread (families D001 to D003).
TEST_P(ReduceFaults, D002_VarianceOfValuesFarFromZero) {
  Values values;
  for (int i = 0; i < 4096; ++i) values.push_back(10000 + (i % 2 ? 1 : -1));
  for (const Shape& shape : {Shape{4096, 1}, Shape{64, 64}}) {
    const Tensor x = make(values, shape, DType::f32);
    EXPECT_NEAR(var(x, {}, 0).item<double>(), 1, 1e-6);
    EXPECT_NEAR(std(x, {0, 1}, 0).item<double>(), 1, 1e-6);
  }
  const Tensor columns = make(values, {2048, 2}, DType::f32);
  expect_values(var(columns, {0}), {0, 0});
  EXPECT_EQ(var(full({513, 1025}, 3.3, DType::f32)).item<double>(), 0);
  EXPECT_NEAR(var(make({4.875, 5, 5.125, 5}, {4}, DType::bf16), {}, 0).item<double>(), 0.0078125,
              1e-9);
}

TEST_P(ReduceFaults, VarOfTooFewElements) {
  for (const DType dtype : kDTypes) {
    // One element, or as many as the correction: 0/0. More spread than that: something / 0.
    expect_values(var(make({5}, {1}, dtype)), {NAN});
    expect_values(std(make({5}, {1}, dtype)), {NAN});
    expect_values(var(make({5, 5}, {2}, dtype), {}, 2), {NAN});
    expect_values(var(make({5, 6}, {2}, dtype), {}, 2), {kInf});
    expect_values(std(make({5, 6}, {2}, dtype), {}, 3.5), {kInf});
    expect_values(var(make({5, 6}, {2}, dtype), {}, 0), {0.25});
    Tensor x = leaf({5, 6, 5.5}, {3}, dtype);
    var(x, {}, 3).backward();
    expect_values(x.grad(), {-kInf, kInf, NAN});
  }
}

TEST_P(ReduceFaults, LogsumexpOfInfinities) {
  for (const DType dtype : kDTypes) {
    Tensor x = leaf({-kInf, -kInf, -kInf, 0, kInf, 1, NAN, 0, -kInf, 0}, {5, 2}, dtype);
    const Tensor y = logsumexp(x, {1});
    expect_values(y, {-kInf, 0, kInf, NAN, 0});
    y.backward(full({5}, 2, dtype));
    // All -inf: 0. An inf: inf - inf at its place.
    expect_values(x.grad(), {0, 0, 0, 2, NAN, 0, NAN, NAN, 0, 2});
    // The same along columns and in long sets, where parts are all -inf.
    Values values(2 * 300, -kInf);
    values[2 * 299] = 3;
    expect_values(logsumexp(make(values, {300, 2}, dtype), {0}), {3, -kInf});
    Values row(5000, -kInf);
    row[4321] = -2;
    expect_values(logsumexp(make(row, {5000}, dtype)), {-2});
    EXPECT_NEAR(logsumexp(full({2}, 10000, DType::f32)).item<double>(), 10000.6931472, 1e-3);
  }
}

TEST_P(ReduceFaults, MoreThan65535Rows) {
  const int64_t rows = 70001;
  Tensor x = full({rows, 3}, 1, DType::f32).set_requires_grad(true);
  const Tensor y = norm2(x, {1});
  EXPECT_NEAR(y.slice(0, rows - 1, rows).item<double>(), std::sqrt(3.0), 1e-6);
  y.backward(full({rows}, 1, DType::f32));
  EXPECT_NEAR(x.grad().slice(0, rows - 1, rows).slice(1, 2, 3).item<double>(), std::sqrt(1.0 / 3),
              1e-6);
}

// Views that no 16-byte access fits.
TEST_P(ReduceFaults, UnalignedViews) {
  for (const DType dtype : kDTypes) {
    for (const int64_t shift : {1, 2, 3}) {
      Tensor x = full({9 * 40 + shift}, 1, dtype).set_requires_grad(true);
      const Tensor view = x.slice(0, shift, 9 * 40 + shift).reshape({9, 40});
      const Tensor y = norm2(view * 2.0, {0}), z = max(view, {1});
      expect_values(y, Values(40, 6));
      expect_values(z, Values(9, 1));
      z.backward(full({9}, 40, dtype));
      Values want(static_cast<size_t>(9 * 40 + shift), 1);
      std::fill_n(want.begin(), shift, 0);
      expect_values(x.grad(), want);
    }
  }
}

}  // namespace
}  // namespace gradus
