#include "autograd/ops/batch_norm.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "autograd/ops/arithmetic.h"
#include "autograd/ops/sum.h"
#include "nn/batch_norm.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/each_device.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/op_modes.h"

namespace gradus {
namespace {

GRADUS_TEST_OP_CASES(batch_norm);

using Values = std::vector<double>;

void expect_near(const Tensor& got, const Values& want, double tolerance) {
  const Values values = got.to_vector<double>();
  ASSERT_EQ(values.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(values[i], want[i], tolerance) << "at " << i;
}

class BatchNorm : public test::EachDevice {
 protected:
  Tensor tensor(const Values& values, const Shape& shape, DType dtype = DType::f64) {
    return Tensor::from_vector(values, shape, {.dtype = dtype, .device = GetParam()});
  }
  BatchNormState fresh_state(int64_t c, DType dtype = DType::f64) {
    const TensorOptions options{.dtype = dtype, .device = GetParam()};
    return {Tensor::zeros({c}, options), Tensor::ones({c}, options),
            Tensor::zeros({1}, {.dtype = DType::i64, .device = GetParam()})};
  }
};
GRADUS_ON_EACH_DEVICE(BatchNorm);

TEST_P(BatchNorm, EvaluationGradientDoesNotReadX) {
  const BatchNormState state{tensor({0}, {1}), tensor({4}, {1}), {}};
  for (const Shape& shape : {Shape{4, 1}, Shape{2, 1, 2}}) {
    Tensor x = tensor({1, INFINITY, 3, 4}, shape).set_requires_grad(true);
    batch_norm(x, {}, {}, state, {.training = false, .eps = 0})
        .backward(tensor({2, 4, 6, 8}, shape));
    expect_near(x.grad(), {1, 2, 3, 4}, 0);
  }
}

TEST_P(BatchNorm, AnInfinityMakesItsRunningStatisticsNaN) {
  for (const bool first : {true, false}) {
    const BatchNormState state = fresh_state(2, DType::f32);
    const double inf = INFINITY;
    batch_norm(tensor({first ? inf : 1, 1, first ? 1 : inf, 3}, {2, 2}, DType::f32), {}, {}, state);
    const Values mean = state.running_mean.to_vector<double>();
    const Values var = state.running_var.to_vector<double>();
    EXPECT_TRUE(std::isnan(mean[0]) && std::isnan(var[0])) << mean[0] << " " << var[0];
    EXPECT_NEAR(mean[1], 0.2, 1e-6);
    EXPECT_NEAR(var[1], 1.1, 1e-6);
  }
}

// What was saved of them before is noticed; evaluation writes nothing.
TEST_P(BatchNorm, TrainingRaisesTheVersionsOfItsState) {
  const BatchNormState state = fresh_state(1);
  const auto versions = [&] {
    return std::vector<uint64_t>{state.running_mean.storage()->version(),
                                 state.running_var.storage()->version(),
                                 state.batches.storage()->version()};
  };
  const std::vector<uint64_t> before = versions();
  batch_norm(tensor({1, 3}, {2, 1}), {}, {}, state, {.training = false});
  EXPECT_EQ(versions(), before);
  batch_norm(tensor({1, 3}, {2, 1}), {}, {}, state);
  EXPECT_EQ(versions(), (std::vector<uint64_t>{before[0] + 1, before[1] + 1, before[2] + 1}));
}

TEST_P(BatchNorm, BackwardUsesTheStatisticsOfItsForward) {
  // A later training step moves the running statistics; the evaluation gradient must not see that.
  const BatchNormState state = fresh_state(1);
  Tensor x = tensor({0, 1, 2}, {3, 1}).set_requires_grad(true);
  Tensor y = batch_norm(x, {}, {}, state, {.training = false, .eps = 0});
  batch_norm(tensor({10, 20, 30}, {3, 1}), {}, {}, state);
  y.backward(tensor({1, 1, 1}, {3, 1}));
  expect_near(x.grad(), {1, 1, 1}, 0);
}

// As training, forward and backward.
TEST_P(BatchNorm, EvaluationWithoutStatisticsUsesThoseOfTheBatch) {
  for (const Shape& shape : {Shape{4, 2}, Shape{2, 2, 2}}) {
    const auto results = [&](bool training) {
      Tensor x = tensor({1, 5, 2, 3, 4, 8, -1, 0}, shape).set_requires_grad(true);
      Tensor gamma = tensor({2, 3}, {2}).set_requires_grad(true);
      const Tensor y = batch_norm(x, gamma, {}, {}, {.training = training});
      y.backward(tensor({1, 0, 2, -3, 0, 1, 1, 4}, shape));
      return std::array{y.to_vector<double>(), x.grad().to_vector<double>(),
                        gamma.grad().to_vector<double>()};
    };
    EXPECT_EQ(results(false), results(true)) << to_string(shape);
  }
  EXPECT_ERROR(batch_norm(tensor({1, 2}, {1, 2}), {}, {}, {}, {.training = false}),
               ErrorCode::invalid_argument, "more than one value per channel");
}

TEST_P(BatchNorm, EvaluationReadsStatisticsOfAnyStride) {
  const Tensor means = tensor({1, 9, 5, 9, -2, 9}, {6}), vars = tensor({4, 9, 9, 16, 9, 9, 1}, {7});
  const BatchNormState state{means.slice(0, 0, 6, 2), vars.slice(0, 0, 7, 3), {}};
  struct {
    Shape shape;
    Values x, y, dx;
  } const cases[] = {{{2, 3}, {3, 5, -2, 5, 9, 0}, {1, 0, 0, 2, 1, 2}, {2, 1, 4, 2, 1, 4}},
                     {{1, 3, 2}, {3, 5, 5, 9, -2, 0}, {1, 2, 0, 1, 0, 2}, {2, 2, 1, 1, 4, 4}}};
  for (const auto& given : cases) {
    Tensor x = tensor(given.x, given.shape).set_requires_grad(true);
    const Tensor y = batch_norm(x, {}, {}, state, {.training = false, .eps = 0});
    expect_near(y, given.y, 0);
    y.backward(tensor(Values(6, 4), given.shape));
    expect_near(x.grad(), given.dx, 0);
  }
}

TEST_P(BatchNorm, OtherStridesAreCopiedFirst) {
  Tensor base = tensor({1, 4, 2, 5, 3, 7}, {3, 2}).set_requires_grad(true);
  const Tensor x = base.transpose(0, 1).unsqueeze(0).transpose(1, 2);  // [1, 3, 2], not dense
  const Tensor want = batch_norm(x.detach().contiguous());
  Tensor y = batch_norm(x);
  expect_near(y, want.to_vector<double>(), 0);
  y.backward(tensor({1, 2, 3, 4, 5, 6}, {1, 3, 2}));
  EXPECT_TRUE(base.grad().defined());
}

TEST_P(BatchNorm, AgreesWithPyTorch) {
  for (const auto& golden : ref::golden_cases("batch_norm")) {
    const std::string name = golden.at("name");
    SCOPED_TRACE(name);
    const auto input = [&](const std::string& key) {
      const ref::Array array = ref::golden_array(golden.at("inputs"), key);
      return array.empty() ? Tensor() : tensor(array.data, array.shape).clone();
    };
    const auto expect = [&](const Tensor& got, const char* group, const std::string& key) {
      const ref::Array want = ref::golden_array(golden.at(group), key);
      EXPECT_TRUE(agrees(got.to_vector<double>(), want.data, DType::f64, got.numel())) << key;
    };
    const auto& args = golden.at("args");
    const BatchNormOptions options{
        .training = name.ends_with("train"),
        .momentum = args.at("momentum").is_null() ? 0.1 : args.at("momentum").get<double>(),
        .cumulative = args.at("momentum").is_null(),
        .eps = args.at("eps")};
    const BatchNormState state{input("running_mean"), input("running_var"), fresh_state(1).batches};
    Tensor leaves[] = {input("x"), input("gamma"), input("beta")};
    for (Tensor& leaf : leaves) {
      if (leaf.defined()) leaf.set_requires_grad(true);
    }
    const Tensor y = batch_norm(leaves[0], leaves[1], leaves[2], state, options);
    const ref::Array dy = ref::golden_array(golden.at("dy"));
    y.backward(tensor(dy.data, dy.shape));
    expect(y, "outputs", "y");
    const char* keys[] = {"x", "gamma", "beta"};
    for (int i = 0; i < 3; ++i) {
      if (leaves[i].defined()) expect(leaves[i].grad(), "gradients", keys[i]);
    }
    if (!options.training) continue;
    expect(state.running_mean, "outputs", "running_mean");
    expect(state.running_var, "outputs", "running_var");
    batch_norm(input("second_x"), leaves[1], leaves[2], state, options);
    expect(state.running_mean, "outputs", "second_running_mean");
    expect(state.running_var, "outputs", "second_running_var");
  }
}

// Channels of 516 KB: on CUDA four wide blocks or eight narrow ones hold one, the last of which has
// fewer packs. Values drift, so that none may be missing from the moments; all channels give one y.
TEST_P(BatchNorm, LongChannelsThatClustersHold) {
  const int64_t n = 129, s = 25 * 40;
  std::vector<float> row(static_cast<size_t>(n * s));
  double sum = 0, squares = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    row[i] = static_cast<float>(i % 7 + 8 * i / row.size());
    sum += row[i];
    squares += row[i] * row[i];
  }
  const double count = static_cast<double>(n * s), mean = sum / count;
  const double rstd = 1 / std::sqrt(squares / count - mean * mean);
  for (const int64_t c : {32, 60}) {
    const auto channels = static_cast<size_t>(c), plane = static_cast<size_t>(s);
    const auto of_row = [&](size_t i) { return row[i / (channels * plane) * plane + i % plane]; };
    std::vector<float> values(static_cast<size_t>(n * c * s));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = of_row(i) + static_cast<float>(i / plane % channels);
    const Tensor x =
        Tensor::from_vector(values, {n, c, 25, 40}, {.dtype = DType::f32, .device = GetParam()});
    const std::vector<float> y = batch_norm(x, {}, {}, {}, {.eps = 0}).to_vector<float>();
    for (size_t i = 0; i < y.size(); ++i)
      ASSERT_NEAR(y[i], (of_row(i) - mean) * rstd, 1e-5) << "at " << i;
  }
}

// What a thread sees first is unlike the rest.
TEST_P(BatchNorm, StepsDoNotCancel) {
  for (const int64_t zeros : {64, 1024, 2048}) {
    const int64_t s = 64 * 64, m = 16 * s;
    std::vector<float> x(static_cast<size_t>(16 * 8 * s));
    for (size_t i = 0; i < x.size(); ++i) {
      const int64_t n = static_cast<int64_t>(i) / (8 * s), at = static_cast<int64_t>(i) % s;
      x[i] = n * s + at < zeros ? 0.0f : 1.37f;
    }
    const double share = static_cast<double>(zeros) / static_cast<double>(m), c = 1.37f;
    const double deviation = std::sqrt(share * (1 - share) * c * c + 1e-5);
    const double low = -(1 - share) * c / deviation, high = share * c / deviation;
    const Tensor y = batch_norm(
        Tensor::from_vector(x, {16, 8, 64, 64}, {.dtype = DType::f32, .device = GetParam()}));
    const std::vector<float> got = y.to_vector<float>();
    const double tolerance = 4e-6 * std::abs(low);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], x[i] == 0 ? low : high, tolerance) << zeros << " at " << i;
    }
  }
}

// Channels of 258 KB in 16 bits: on CUDA eight narrow blocks hold one, backward with some packs in
// registers; in f32 memory is read twice backward. The values are exact in both.
TEST_P(BatchNorm, LongChannelsOf16BitsAgreeWithF32) {
  const int64_t n = 129, c = 60;
  std::vector<float> values(static_cast<size_t>(n * c * 1000)), dy_values(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i * 7 % 23) + static_cast<float>(i / 1000 % 60) / 4;
    dy_values[i] = static_cast<float>(i * 5 % 13 + i / 1000 % 5) - 6;
  }
  const auto results_of = [&](DType dtype) {
    const TensorOptions options{.dtype = dtype, .device = GetParam()};
    Tensor x = Tensor::from_vector(values, {n, c, 25, 40}, options).set_requires_grad(true);
    Tensor gamma = Tensor::full({c}, 1.5, {.dtype = DType::f32, .device = GetParam()});
    gamma.set_requires_grad(true);
    const Tensor y = batch_norm(x, gamma, {}, {}, {});
    y.backward(Tensor::from_vector(dy_values, {n, c, 25, 40}, options));
    return std::array{y.to_vector<float>(), x.grad().to_vector<float>(),
                      gamma.grad().to_vector<float>()};
  };
  const auto want = results_of(DType::f32), got = results_of(DType::bf16);
  const float tolerances[] = {0.02f, 0.01f, 0.5f};  // dgamma: sums of 129,000 products
  for (size_t k = 0; k < want.size(); ++k) {
    ASSERT_EQ(got[k].size(), want[k].size());
    for (size_t i = 0; i < want[k].size(); ++i)
      ASSERT_NEAR(got[k][i], want[k][i], tolerances[k]) << "of result " << k << " at " << i;
  }
}

TEST(BatchNormLayer, WithoutStatisticsThereIsNothingToAverage) {
  nn::BatchNorm1d layer(1, 0, std::nullopt, false, false);
  expect_near(layer(Tensor::from_vector<float>({-1, 1}, {2, 1})), {-1, 1}, 0);
}

// Beyond 2^31 elements, +1 and -1 in turn along each channel; 10 GB of the device.
TEST(BatchNormCudaFaultsSlow, D104_BeyondTwoToThe31Elements) {
  GRADUS_SKIP_WITHOUT(kCuda);
  const int64_t c = 128, h = 16128, w = 1200, plane = h * w;
  const TensorOptions bf16{.dtype = DType::bf16, .device = kCuda};
  const Tensor pair = Tensor::from_vector<float>({1, -1}, {2}, bf16);
  const auto expect_turns = [&](const Tensor& rows, int64_t along) {  // of one channel or pixel
    const Values values = rows.to_vector<double>();
    for (size_t i = 0; i < values.size(); ++i) {
      const int64_t pixel = static_cast<int64_t>(i) / along;
      ASSERT_EQ(values[i], pixel % 2 ? -1 : 1) << "at " << i;
    }
  };
  {
    const Tensor x = pair.reshape({1, 1, 1, 2}).expand({1, c, plane / 2, 2}).clone();
    const Tensor y = batch_norm(x.reshape({1, c, h, w}), {}, {}, {}, {.eps = 0});
    for (const int64_t channel : {int64_t{0}, c / 2, c - 1}) {
      const Tensor row = y.reshape({c, plane}).slice(0, channel, channel + 1).flatten();
      for (const int64_t at : {int64_t{0}, plane / 2, plane - 2})
        expect_turns(row.slice(0, at, at + 2), 1);
    }
  }
  {
    const Tensor x = pair.reshape({1, 1, 2, 1}).expand({1, plane / 2, 2, c}).clone();
    const Tensor pixels = x.reshape({1, h, w, c}).permute({0, 3, 1, 2});
    const Tensor y = batch_norm(pixels, {}, {}, {}, {.eps = 0});
    ASSERT_TRUE(y.is_contiguous(MemoryFormat::channels_last));
    const Tensor rows = y.permute({0, 2, 3, 1}).reshape({plane, c});
    for (const int64_t at : {int64_t{0}, plane / 2, plane - 2})
      expect_turns(rows.slice(0, at, at + 2), c);
  }
}

}  // namespace
}  // namespace gradus
