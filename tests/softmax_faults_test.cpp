// Known faults of softmax in comparable software: each a test of its whole family, on both devices.
#include <cmath>
#include <limits>

#include "autograd/ops/softmax.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/gpu.h"
#include "tests/support/op_modes.h"
#include "tests/support/reference_softmax.h"

namespace gradus {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16};

using Values = std::vector<double>;

// The sets of c values that follow each other in `values`, as rows [sets, c] or, seen the other way
// round, as columns [c, sets]: softmax or log_softmax of them, set after set.
Values apply(const Values& values, int64_t c, bool columns, bool log, DType dtype, Device device) {
  const int64_t sets = static_cast<int64_t>(values.size()) / c;
  Tensor x = Tensor::from_vector(values, {sets, c}, {.dtype = dtype, .device = device});
  if (columns) x = x.transpose(0, 1).contiguous();
  const int axis = columns ? 0 : 1;
  const Tensor y = log ? log_softmax(x, axis) : softmax(x, axis);
  return (columns ? y.transpose(0, 1) : y).to_vector<double>();
}

// Every way to compute sets of c values must give `want` and `want_log`.
void expect_sets(const Values& x, int64_t c, const Values& want, const Values& want_log,
                 Device device) {
  for (const DType dtype : kDTypes) {
    for (const bool columns : {false, true}) {
      SCOPED_TRACE(concat(to_string(dtype), columns ? ", columns of " : ", rows of ", c));
      EXPECT_TRUE(agrees(apply(x, c, columns, false, dtype, device), want, dtype, c)) << "softmax";
      EXPECT_TRUE(agrees(apply(x, c, columns, true, dtype, device), want_log, dtype, c))
          << "log_softmax";
    }
  }
}

// The same row with `more` copies of -inf behind it, which change nothing but the row's length: so
// every mapping of the kernels sees it.
void expect_row(const Values& row, const Values& want, const Values& want_log, Device device) {
  for (const int64_t more : {0, 5, 30, 61, 500, 2100, 9000, 40000}) {
    Values x = row, y = want, y_log = want_log;
    const double masked = std::isnan(want[0]) ? kNaN : 0;
    x.resize(row.size() + static_cast<size_t>(more), -kInf);
    y.resize(x.size(), masked);
    y_log.resize(x.size(), std::isnan(masked) ? kNaN : -kInf);
    expect_sets(x, static_cast<int64_t>(x.size()), y, y_log, device);
  }
}

#define GRADUS_ON_BOTH_DEVICES(name)        \
  void name(Device device);                 \
  TEST(SoftmaxFaults, name) { name(kCpu); } \
  TEST(SoftmaxCudaFaults, name) {           \
    GRADUS_SKIP_WITHOUT(kCuda);             \
    name(kCuda);                            \
  }                                         \
  void name(Device device)

GRADUS_ON_BOTH_DEVICES(D038_RowsShorterThanABlock) {
  for (const int64_t c : {1, 2, 3, 4, 5, 8, 17, 31, 33, 63, 65, 127, 129, 255, 257, 1023, 1025}) {
    const double share = 1.0 / static_cast<double>(c);
    const auto count = static_cast<size_t>(3 * c);
    expect_sets(Values(count, 0.5), c, Values(count, share), Values(count, std::log(share)),
                device);
  }
}

GRADUS_ON_BOTH_DEVICES(D038_MaskedPrefixes) {
  expect_row({-kInf, 0, -kInf}, {0, 1, 0}, {-kInf, 0, -kInf}, device);
  const double half = std::log(0.5);
  expect_row({-kInf, -kInf, 1, 1}, {0, 0, 0.5, 0.5}, {-kInf, -kInf, half, half}, device);
  // Whole blocks and chunks of nothing but -inf before the first value.
  for (const size_t masked : {40, 700, 5000, 41000}) {
    Values x(masked, -kInf), y(masked, 0), y_log(masked, -kInf);
    x.push_back(3), y.push_back(1), y_log.push_back(0);
    expect_sets(x, static_cast<int64_t>(x.size()), y, y_log, device);
  }
}

GRADUS_ON_BOTH_DEVICES(D039_FullyMaskedRowIsNaN) {
  const Values x = {-kInf, -kInf, -kInf, 0, -1, -2};
  for (const DType dtype : kDTypes) {
    for (const bool columns : {false, true}) {
      const Values y = apply(x, 3, columns, false, dtype, device);
      const Values y_log = apply(x, 3, columns, true, dtype, device);
      const Values want = {kNaN, kNaN, kNaN, 0.66524095577, 0.24472847105, 0.09003057317};
      Values want_log;
      for (const double value : want) want_log.push_back(std::log(value));
      const Tolerance allowed{.relative = dtype == DType::f64 ? 1e-10 : 2 * ulp(1, dtype)};
      EXPECT_TRUE(agrees(y, want, dtype, allowed)) << to_string(dtype);
      EXPECT_TRUE(agrees(y_log, want_log, dtype, allowed)) << to_string(dtype);
    }
  }
  expect_row({-kInf, -kInf}, {kNaN, kNaN}, {kNaN, kNaN}, device);
}

GRADUS_ON_BOTH_DEVICES(D040_NaNPassesThrough) {
  for (const Values& row : {Values{1, kNaN}, Values{kNaN, 1}, Values{kNaN, kInf, -kInf},
                            Values{kNaN, kNaN}, Values{-kInf, kNaN, 2}}) {
    const Values want(row.size(), kNaN);
    expect_row(row, want, want, device);
  }
  // A NaN in one row leaves its neighbours alone.
  for (const DType dtype : kDTypes) {
    for (const bool columns : {false, true}) {
      const Values y = apply({kNaN, 1, 2, 2, 0, kNaN, 3, 3}, 2, columns, false, dtype, device);
      EXPECT_TRUE(agrees(y, Values{kNaN, kNaN, 0.5, 0.5, kNaN, kNaN, 0.5, 0.5}, dtype, 2));
    }
  }
}

GRADUS_ON_BOTH_DEVICES(D041_InfiniteLogits) {
  expect_row({kInf, 1, 2}, {kNaN, kNaN, kNaN}, {kNaN, kNaN, kNaN}, device);
  expect_row({1, kInf}, {kNaN, kNaN}, {kNaN, kNaN}, device);
  expect_row({0, -kInf}, {1, 0}, {0, -kInf}, device);
}

GRADUS_ON_BOTH_DEVICES(D042_LargeLogits) {
  expect_row({378, -250, -424}, {1, 0, 0}, {0, -628, -802}, device);
  expect_row({1e4, 1e4}, {0.5, 0.5}, {std::log(0.5), std::log(0.5)}, device);
  expect_row({-1e4, -1e4}, {0.5, 0.5}, {std::log(0.5), std::log(0.5)}, device);
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const bool columns : {false, true}) {
      const Values y = apply({3e38, -3e38, 0}, 3, columns, false, dtype, device);
      EXPECT_EQ(y, (Values{1, 0, 0}));
    }
  }
}

// Sets of every size beside each other, as columns in one access of a thread.
GRADUS_ON_BOTH_DEVICES(D042_LargeLogitsBesideSmallOnes) {
  constexpr int64_t c = 16;
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    Values x, want;
    for (const double value : {0.0, 5.0, 1e4, 1.5e6, 3e38, -3e38, -1.5e6, -1e4}) {
      const double top = round_to(value, dtype);
      for (int64_t i = 0; i < c; ++i) {
        x.push_back(i < 2 ? top : top - std::abs(top) / 2 - 1000);
        want.push_back(i < 2 ? 0.5 : 0);
      }
    }
    for (const bool columns : {false, true}) {
      EXPECT_EQ(apply(x, c, columns, false, dtype, device), want) << to_string(dtype) << columns;
    }
  }
}

// More rows than a grid has blocks along y or z, both directions.
GRADUS_ON_BOTH_DEVICES(D103_MoreThan65535Rows) {
  for (const int64_t rows : {65536, 70001}) {
    const Tensor x = Tensor::zeros({rows, 2}, {.device = device}).set_requires_grad(true);
    const Tensor y = softmax(x, 1);
    const Values dy_row = {1, 3};
    Values dy;
    for (int64_t i = 0; i < rows; ++i) dy.insert(dy.end(), dy_row.begin(), dy_row.end());
    y.backward(Tensor::from_vector(dy, {rows, 2}, {.device = device}));
    const std::vector<float> values = y.to_vector<float>(), dx = x.grad().to_vector<float>();
    for (size_t i = 0; i < values.size(); i += 2) {
      ASSERT_EQ(values[i], 0.5F);
      ASSERT_EQ(dx[i], -0.5F) << i;
      ASSERT_EQ(dx[i + 1], 0.5F) << i;
    }
  }
}

GRADUS_ON_BOTH_DEVICES(D106_EmptyTensors) {
  for (const DType dtype : kDTypes) {
    for (const Shape& shape : {Shape{0}, Shape{0, 3}, Shape{3, 0}, Shape{0, 4, 2, 2},
                               Shape{2, 0, 3, 3}, Shape{2, 3, 0, 2}}) {
      for (int axis = 0; axis < shape.rank(); ++axis) {
        for (const bool log : {false, true}) {
          const Tensor x =
              Tensor::zeros(shape, {.dtype = dtype, .device = device}).set_requires_grad(true);
          const Tensor y = log ? log_softmax(x, axis) : softmax(x, axis);
          EXPECT_EQ(y.shape(), shape);
          y.backward(Tensor::ones(shape, {.dtype = dtype, .device = device}));
          EXPECT_EQ(x.grad().shape(), shape);
        }
      }
    }
  }
}

// A set of one value: its share is 1, its logarithm 0, the gradient 0.
GRADUS_ON_BOTH_DEVICES(OneValue) {
  for (const DType dtype : kDTypes) {
    for (const Shape& shape : {Shape{1}, Shape{5, 1}, Shape{2, 1, 3, 4}}) {
      const int axis = shape.rank() == 4 ? 1 : -1;
      for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
        if (format == MemoryFormat::channels_last && shape.rank() != 4) continue;
        const ref::Array values = draw_upstream(shape, dtype, 1);
        for (const bool log : {false, true}) {
          const Tensor x = Tensor::from_vector(values.data, shape,
                                               {.dtype = dtype, .device = device, .format = format})
                               .set_requires_grad(true);
          const Tensor y = log ? log_softmax(x, axis) : softmax(x, axis);
          y.backward(x.detach());
          const auto count = static_cast<size_t>(shape.numel());
          EXPECT_EQ(y.to_vector<double>(), Values(count, log ? 0 : 1));
          EXPECT_EQ(x.grad().to_vector<double>(), Values(count, 0));
        }
      }
    }
  }
}

// Offsets beyond 2^31 elements: D105 in both of its shapes.
TEST(SoftmaxCudaFaults, SlowD105_RowsBeyond2To31Elements) {
  GRADUS_SKIP_WITHOUT(kCuda);
  const TensorOptions f16{.dtype = DType::f16, .device = kCuda};
  constexpr int64_t rows = 2097153, c = 1024;
  const Tensor y = softmax(Tensor::zeros({rows, c}, f16), 1);
  for (const int64_t row : {int64_t{0}, rows / 2, rows - 1}) {
    EXPECT_EQ(y.slice(0, row, row + 1).to_vector<double>(), Values(c, 1.0 / c)) << row;
  }
}

TEST(SoftmaxCudaFaults, SlowD105_ShortRowsBeyond2To31Elements) {
  GRADUS_SKIP_WITHOUT(kCuda);
  const TensorOptions f16{.dtype = DType::f16, .device = kCuda};
  constexpr int64_t rows = 1100000000;
  const Tensor x = Tensor::zeros({rows, 2}, f16).set_requires_grad(true);
  const Tensor y = log_softmax(x, 1);
  const double want = round_to(std::log(0.5), DType::f16);
  const auto last_row = [](const Tensor& t) {
    return t.slice(0, rows - 1, rows).to_vector<double>();
  };
  EXPECT_EQ(last_row(y), Values(2, want));
  Tensor dy = Tensor::zeros({rows, 2}, f16);
  dy.slice(0, rows - 1, rows).copy_(Tensor::from_vector(Values{1, 3}, {1, 2}, f16));
  y.backward(dy);
  const Values dx = last_row(x.grad());  // 1 - 4·exp(y) and 3 - 4·exp(y), of the rounded y
  EXPECT_EQ(dx[0], round_to(1 - 4 * std::exp(want), DType::f16));
  EXPECT_EQ(dx[1], round_to(3 - 4 * std::exp(want), DType::f16));
  EXPECT_EQ(x.grad().slice(0, 0, 1).to_vector<double>(), Values(2, 0));
}

TEST(SoftmaxCudaFaults, SlowD105_ChannelsBeyond2To31Elements) {
  GRADUS_SKIP_WITHOUT(kCuda);
  const TensorOptions f16{.dtype = DType::f16, .device = kCuda};
  const Shape shape{3, 256, 1, 2883584};  // 2.2e9
  const Tensor y = softmax(Tensor::zeros(shape, f16), 1);
  for (const int64_t channel : {0, 255}) {
    EXPECT_EQ(
        y.slice(0, 2, 3).slice(1, channel, channel + 1).slice(3, 2883583, 2883584).item<float>(),
        1.0F / 256);
  }
}

// 1 and many terms of 0.1: what each of these loses shows.
GRADUS_ON_BOTH_DEVICES(D004_LongSumsKeepTheirDigits) {
  const int64_t c = 1 << 20;
  Values x(static_cast<size_t>(c), std::log(0.1));
  x[0] = 0;
  const double exact = 1 + 0.1 * static_cast<double>(c - 1);
  for (const bool columns : {false, true}) {
    const Values y = apply(x, c, columns, false, DType::f32, device);
    EXPECT_NEAR(y[0] * exact, 1, 2e-5) << columns;
    EXPECT_NEAR(y.back() * exact, 0.1, 2e-6) << columns;
  }
}

}  // namespace
}  // namespace gradus
