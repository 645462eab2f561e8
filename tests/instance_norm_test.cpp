#include "nn/instance_norm.h"

#include <cmath>

#include "autograd/ops/group_norm.h"
#include "autograd/ops/instance_norm.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/each_device.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace gradus {
namespace {

GRADUS_TEST_OP_CASES(instance_norm);

using Values = std::vector<double>;

void expect_near(const Tensor& got, const Values& want, double tolerance) {
  const Values values = got.to_vector<double>();
  ASSERT_EQ(values.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(values[i], want[i], tolerance) << "at " << i;
}

class InstanceNorm : public test::EachDevice {
 protected:
  Tensor tensor(const Values& values, const Shape& shape, DType dtype = DType::f64) {
    return Tensor::from_vector(values, shape, {.dtype = dtype, .device = GetParam()});
  }
  InstanceNormState fresh_state(int64_t c, DType dtype = DType::f64) {
    const TensorOptions options{.dtype = dtype, .device = GetParam()};
    return {Tensor::zeros({c}, options), Tensor::ones({c}, options)};
  }
};
GRADUS_ON_EACH_DEVICE(InstanceNorm);

TEST_P(InstanceNorm, RunningStatisticsAverageOverTheSamples) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const InstanceNormState state = fresh_state(2, dtype);
    // Means 2, 10, 4, 20 and unbiased variances 2, 8, 32, 0.
    const Tensor x = tensor({1, 3, 8, 12, 0, 8, 20, 20}, {2, 2, 2}, dtype);
    const uint64_t mean_before = state.running_mean.storage()->version();
    const uint64_t var_before = state.running_var.storage()->version();
    instance_norm(x, {}, {}, state);
    EXPECT_EQ(state.running_mean.storage()->version(), mean_before + 1);
    EXPECT_EQ(state.running_var.storage()->version(), var_before + 1);
    expect_near(state.running_mean, {0.1 * 3, 0.1 * 15}, 1e-6);
    expect_near(state.running_var, {0.9 + 0.1 * 17, 0.9 + 0.1 * 4}, 1e-6);
    instance_norm(x, {}, {}, state, {.momentum = 1});
    expect_near(state.running_mean, {3, 15}, 1e-6);
    expect_near(state.running_var, {17, 4}, 1e-6);
  }
}

TEST_P(InstanceNorm, AnInfinityMakesItsRunningStatisticsNaN) {
  const InstanceNormState state = fresh_state(2, DType::f32);
  instance_norm(tensor({1, INFINITY, 1, 3}, {1, 2, 2}, DType::f32), {}, {}, state);
  const Values mean = state.running_mean.to_vector<double>();
  const Values var = state.running_var.to_vector<double>();
  EXPECT_TRUE(std::isnan(mean[0]) && std::isnan(var[0])) << mean[0] << " " << var[0];
  EXPECT_NEAR(mean[1], 0.2, 1e-6);
  EXPECT_NEAR(var[1], 1.1, 1e-6);
}

// Beyond 2^31 elements, +1 and -1 in turn, the last set -2 and +2; 17 GB of the device.
TEST(InstanceNormCudaSlow, D104_BeyondTwoToThe31Elements) {
  GRADUS_SKIP_WITHOUT(kCuda);
  const int64_t n = 2051, c = 64, s = 16384, sets = n * c;
  const TensorOptions bf16{.dtype = DType::bf16, .device = kCuda};
  const Tensor pair = Tensor::from_vector<float>({1, -1}, {2}, bf16);
  Tensor x = pair.reshape({1, 1, 2}).expand({sets, s / 2, 2}).clone().reshape({n, c, s});
  x.reshape({sets, s}).slice(0, sets - 1, sets).mul_(-2);
  x.set_requires_grad(true);
  Tensor beta = Tensor::zeros({c}, {.device = kCuda}).set_requires_grad(true);
  const Tensor y = instance_norm(x, {}, beta, {}, {.eps = 0});
  y.backward(Tensor::ones({n, c, s}, bf16));
  const Tensor rows = y.detach().reshape({sets, s}), dx = x.grad().reshape({sets, s});
  for (const int64_t set : {int64_t{0}, int64_t{131072}, sets - 2, sets - 1}) {
    const double first = set == sets - 1 ? -1 : 1;
    for (const int64_t at : {int64_t{0}, s - 2}) {
      expect_near(rows.slice(0, set, set + 1).slice(1, at, at + 2), {first, -first}, 0);
      expect_near(dx.slice(0, set, set + 1).slice(1, at, at + 2), {0, 0}, 0);
    }
  }
  expect_near(beta.grad(), Values(size_t(c), double(n * s)), 0);
}

TEST_P(InstanceNorm, HalfPrecisionKeepsItsStatisticsInF32) {
  const InstanceNormState state = fresh_state(1, DType::f32);
  instance_norm(tensor({1, 2, 3, 6}, {1, 1, 4}, DType::bf16), {}, {}, state);
  expect_near(state.running_mean, {0.3}, 1e-7);
  expect_near(state.running_var, {1.3666667}, 1e-6);
}

// Equal terms show what is lost of each.
TEST_P(InstanceNorm, D004_ManySamplesKeepTheirDigits) {
  constexpr int64_t kSamples = 1 << 18;
  Values values(2 * kSamples, 0.2);
  for (size_t i = 1; i < values.size(); i += 2) values[i] = 0.4;
  const InstanceNormState state = fresh_state(1, DType::f32);
  instance_norm(tensor(values, {kSamples, 1, 2}, DType::f32), {}, {}, state, {.momentum = 1});
  expect_near(state.running_mean, {0.3}, 1e-6);
  expect_near(state.running_var, {0.02}, 1e-7);
}

TEST_P(InstanceNorm, StridedRunningStatisticsAreUpdatedInPlace) {
  const Tensor means = tensor({0, 0, 0, 0}, {4}), vars = tensor(Values(6, 0.0), {6});
  const InstanceNormState state{means.slice(0, 0, 4, 2), vars.slice(0, 0, 6, 3)};
  instance_norm(tensor({1, 3, 10, 20}, {1, 2, 2}), {}, {}, state, {.momentum = 1});
  expect_near(means, {2, 0, 15, 0}, 0);
  expect_near(vars, {2, 0, 0, 50, 0, 0}, 1e-13);
}

TEST_P(InstanceNorm, RunningStatisticsOfManyChannels) {
  const int64_t c = 9000;
  Values values, means;
  for (int64_t i = 0; i < 2 * c; ++i) {
    const double first = static_cast<double>(i % c);
    values.insert(values.end(), {first, first + 4});
    if (i < c) means.push_back(first + 2);
  }
  const InstanceNormState state = fresh_state(c);
  instance_norm(tensor(values, {2, c, 2}), {}, {}, state, {.momentum = 1});
  expect_near(state.running_mean, means, 1e-11);
  expect_near(state.running_var, Values(means.size(), 8), 1e-11);
}

TEST_P(InstanceNorm, EpsilonStaysOutOfTheRunningVariance) {
  const InstanceNormState state = fresh_state(1);
  instance_norm(tensor({3, 3, 3, 3}, {1, 1, 4}), {}, {}, state, {.eps = 0.5});
  EXPECT_DOUBLE_EQ(state.running_var.item<double>(), 0.9);
}

TEST_P(InstanceNorm, EvaluationIsBatchNorms) {
  const InstanceNormState state{tensor({1}, {1}), tensor({0.25}, {1})};
  Tensor x = tensor({0, 1, 2}, {1, 1, 3}).set_requires_grad(true);
  const Tensor y = instance_norm(x, {}, {}, state, {.training = false, .eps = 0});
  expect_near(y, {-2, 0, 2}, 0);
  y.backward(tensor({1, -3, 5}, {1, 1, 3}));
  expect_near(x.grad(), {2, -6, 10}, 0);
  // Without running statistics evaluation is training.
  expect_near(instance_norm(x, {}, {}, {}, {.training = false}),
              instance_norm(x).to_vector<double>(), 0);
}

TEST_P(InstanceNorm, SavesWhatItNormalizedWith) {
  const Tensor x = tensor({1, 3, 8, 12, 0, 8, 20, 24}, {2, 2, 2});
  for (const InstanceNormState& state : {InstanceNormState{}, fresh_state(2)}) {
    NormStatistics saved;
    instance_norm(x, {}, {}, state, {.eps = 0}, &saved);
    EXPECT_EQ(saved.mean.shape(), Shape({2, 2}));
    EXPECT_EQ(saved.rstd.shape(), Shape({2, 2}));
    expect_near(saved.mean, {2, 10, 4, 22}, 0);
    expect_near(saved.rstd, {1, 0.5, 0.25, 0.5}, 0);
  }
  NormStatistics saved;
  instance_norm(x, {}, {}, {tensor({3, 4}, {2}), tensor({4, 0.25}, {2})},
                {.training = false, .eps = 0}, &saved);
  expect_near(saved.mean, {3, 4}, 0);
  expect_near(saved.rstd, {0.5, 2}, 0);
}

TEST_P(InstanceNorm, EmptyBatchChangesNothing) {
  const InstanceNormState state = fresh_state(3);
  EXPECT_EQ(instance_norm(tensor({}, {0, 3, 5}), {}, {}, state).shape(), Shape({0, 3, 5}));
  expect_near(state.running_mean, Values(3, 0.0), 0);
  expect_near(state.running_var, Values(3, 1.0), 0);
  EXPECT_EQ(instance_norm(tensor({}, {2, 0, 5})).shape(), Shape({2, 0, 5}));
}

TEST_P(InstanceNorm, AgreesWithPyTorch) {
  for (const auto& golden : ref::golden_cases("instance_norm")) {
    const std::string name = golden.at("name");
    SCOPED_TRACE(name);
    const auto input = [&](const char* key) {
      const ref::Array array = ref::golden_array(golden.at("inputs"), key);
      return array.empty() ? Tensor() : tensor(array.data, array.shape);
    };
    const auto expect = [&](const Tensor& got, const char* group, const char* key) {
      const ref::Array want = ref::golden_array(golden.at(group), key);
      EXPECT_TRUE(agrees(got.to_vector<double>(), want.data, DType::f64, got.numel())) << key;
    };
    const char* keys[] = {"x", "gamma", "beta"};
    Tensor leaves[3];
    for (int i = 0; i < 3; ++i) {
      leaves[i] = input(keys[i]);
      if (leaves[i].defined()) leaves[i].set_requires_grad(true);
    }
    const InstanceNormState state{input("running_mean"), input("running_var")};
    const Tensor y = instance_norm(leaves[0], leaves[1], leaves[2], state,
                                   {.training = name.ends_with("train"),
                                    .momentum = golden.at("args").at("momentum"),
                                    .eps = golden.at("args").at("eps")});
    const ref::Array dy = ref::golden_array(golden.at("dy"));
    y.backward(tensor(dy.data, dy.shape));
    expect(y, "outputs", "y");
    for (int i = 0; i < 3; ++i) {
      if (leaves[i].defined()) expect(leaves[i].grad(), "gradients", keys[i]);
    }
    if (!name.ends_with("train")) continue;
    expect(state.running_mean, "outputs", "running_mean");
    expect(state.running_var, "outputs", "running_var");
  }
}

TEST_P(InstanceNorm, ErrorsChangeNothing) {
  const InstanceNormState state = fresh_state(3);
  EXPECT_ERROR(instance_norm(tensor(Values(6, 1.0), {2, 3, 1}), {}, {}, state),
               ErrorCode::invalid_argument, "more than one value per sample and channel");
  EXPECT_ERROR(instance_norm(tensor(Values(8, 1.0), {1, 4, 2}), {}, {}, state),
               ErrorCode::invalid_argument, "running_mean must have one entry for each of the 4");
  EXPECT_ERROR(instance_norm(tensor(Values(6, 1.0), {1, 3, 2}), {}, {}, {state.running_mean, {}}),
               ErrorCode::invalid_argument, "come together");
  const Tensor three = tensor(Values(6, 1.0), {1, 3, 2});
  EXPECT_ERROR(instance_norm(three, {}, {}, {tensor({1}, {1}).expand({3}), state.running_var}),
               ErrorCode::invalid_argument, "store an element for each channel", "stride 0");
  EXPECT_ERROR(instance_norm(three, {}, {}, {state.running_mean, state.running_mean}),
               ErrorCode::invalid_argument, "running_mean and running_var share elements");
  const Tensor four = tensor(Values(4, 1.0), {4});
  EXPECT_ERROR(instance_norm(three, {}, {}, {four.slice(0, 0, 3), four.slice(0, 1, 4)}),
               ErrorCode::invalid_argument, "running_mean and running_var share elements");
  std::vector<double> memory(3, 1.0);
  const TensorOptions f64{.dtype = DType::f64};
  EXPECT_ERROR(
      instance_norm(Tensor::ones({1, 3, 2}, f64), {}, {},
                    {Tensor::wrap(memory.data(), {3}, f64), Tensor::wrap(memory.data(), {3}, f64)}),
      ErrorCode::invalid_argument, "running_mean and running_var share elements");
  const Tensor pairs = tensor(Values(6, 1.0), {3, 2}).transpose(0, 1);
  EXPECT_NO_THROW(instance_norm(
      three, {}, {}, {pairs.slice(0, 0, 1).squeeze(0), pairs.slice(0, 1, 2).squeeze(0)}));
  const Tensor ten = tensor(Values(10, 1.0), {10}), even = ten.as_strided({3}, {2}, 0);
  EXPECT_NO_THROW(instance_norm(three, {}, {}, {even, ten.as_strided({3}, {4}, 1)}));
  EXPECT_NO_THROW(instance_norm(three, {}, {}, {ten.as_strided({3}, {4}, 1), even}));
  EXPECT_NO_THROW(
      instance_norm(three, {}, {}, {ten.as_strided({3}, {4}, 0), ten.as_strided({3}, {1}, 5)}));
  EXPECT_NO_THROW(instance_norm(three, {}, {}, {ten.slice(0, 4, 7), ten.slice(0, 0, 3)}));
  const Tensor one = tensor({1, 1}, {1, 1, 2});  // of one element any stride is right
  EXPECT_NO_THROW(
      instance_norm(one, {}, {}, {ten.as_strided({1}, {0}, 0), ten.as_strided({1}, {0}, 1)}));
  EXPECT_ERROR(
      instance_norm(one, {}, {}, {ten.as_strided({1}, {0}, 0), ten.as_strided({1}, {0}, 0)}),
      ErrorCode::invalid_argument, "running_mean and running_var share elements");
  EXPECT_ERROR(instance_norm(three, {}, {}, {even, ten.as_strided({3}, {2}, 4)}),
               ErrorCode::invalid_argument, "running_mean and running_var share elements");
  EXPECT_ERROR(instance_norm(three, {}, {}, {even, ten.as_strided({3}, {3}, 1)}),
               ErrorCode::invalid_argument, "running_mean and running_var share elements");
  for (const bool training : {true, false}) {  // evaluation is batch_norm's, its errors are not
    EXPECT_ERROR(instance_norm(three, tensor({1}, {1}), {}, state, {.training = training}),
                 ErrorCode::invalid_argument, "instance_norm: gamma must have one entry");
    EXPECT_ERROR(instance_norm(three, {}, tensor({1}, {1}), state, {.training = training}),
                 ErrorCode::invalid_argument, "instance_norm: beta must have one entry");
    EXPECT_ERROR(instance_norm(three, {}, {}, state, {.training = training, .eps = -1}),
                 ErrorCode::invalid_argument, "instance_norm: eps must not be negative");
    EXPECT_ERROR(instance_norm(three.to(DType::i64), {}, {}, state, {.training = training}),
                 ErrorCode::invalid_argument, "instance_norm: expected a floating dtype, got i64");
  }
  expect_near(state.running_mean, Values(3, 0.0), 0);
}

TEST(InstanceNormLayer, IsPyTorchs) {
  nn::InstanceNorm2d plain(3);
  EXPECT_TRUE(plain.state_dict().empty());
  nn::InstanceNorm2d full(3, 1e-5, 0.1, true, true);
  std::vector<std::string> names;
  for (const auto& entry : full.state_dict()) names.push_back(entry.name);
  EXPECT_EQ(names, (std::vector<std::string>{"weight", "bias", "running_mean", "running_var",
                                             "num_batches_tracked"}));
  expect_near(full.running_mean, Values(3, 0.0), 0);
  expect_near(full.running_var, Values(3, 1.0), 0);
  const Tensor x = Tensor::from_vector(draw_upstream({2, 3, 4, 4}, DType::f32, 1).data,
                                       {2, 3, 4, 4}, {.dtype = DType::f32});
  const Values want = group_norm(x, 3).to_vector<double>();
  expect_near(full(x), want, 1e-6);
  expect_near(plain(x), want, 1e-6);
  EXPECT_EQ(full.num_batches_tracked.item<int64_t>(), 0);
  EXPECT_NE(full.running_mean.to_vector<double>()[0], 0);
  full.eval();
  plain.eval();
  expect_near(plain(x), want, 1e-6);
  EXPECT_GT(std::abs(full(x).to_vector<double>()[0] - want[0]), 1e-3);
  // Without the sample axis: one sample.
  const Tensor one = x.slice(0, 0, 1).reshape({3, 4, 4});
  EXPECT_EQ(plain(one).shape(), Shape({3, 4, 4}));
  expect_near(plain(one), Values(want.begin(), want.begin() + 48), 1e-6);
  EXPECT_EQ(nn::InstanceNorm1d(3)(Tensor::ones({2, 3, 5})).rank(), 3);
  EXPECT_EQ(nn::InstanceNorm3d(3)(Tensor::ones({2, 3, 2, 2, 5})).rank(), 5);
  EXPECT_ERROR(plain(Tensor::ones({2, 4, 2, 2})), ErrorCode::invalid_argument,
               "expected 3 channels");
  EXPECT_ERROR(plain(Tensor::ones({2, 3})), ErrorCode::invalid_argument,
               "InstanceNorm2d expects rank 3 or 4");
}

}  // namespace
}  // namespace gradus
