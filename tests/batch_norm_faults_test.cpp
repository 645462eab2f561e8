// Faults that comparable software has had with batch normalization, by family. Where the family
// does not depend on the shape, every layout that kernels tell apart is tried.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "autograd/ops/arithmetic.h"
#include "autograd/ops/batch_norm.h"
#include "autograd/ops/sum.h"
#include "nn/batch_norm.h"
#include "nn/linear.h"
#include "nn/optim/sgd.h"
#include "tests/support/each_device.h"
#include "tests/support/expect_error.h"

namespace gradus {
namespace {

using Values = std::vector<double>;

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16};

void expect_near(const Tensor& got, const Values& want, double tolerance) {
  const Values values = got.to_vector<double>();
  ASSERT_EQ(values.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(values[i], want[i], tolerance) << "at " << i;
}

// Where the m values of a channel lie; all of the three channels hold the same.
struct Layout {
  const char* name;
  Shape shape;
  MemoryFormat format = MemoryFormat::contiguous;

  Values spread(const Values& values) const {
    Values all(static_cast<size_t>(shape.numel()));
    const size_t c = static_cast<size_t>(shape[1]);
    const size_t s = all.size() / (static_cast<size_t>(shape[0]) * c);
    for (size_t i = 0; i < all.size(); ++i) all[i] = values[i / (s * c) * s + i % s];
    return all;
  }
};

std::vector<Layout> layouts(int64_t m) {
  std::vector<Layout> result{{"rows", {m, 3}}, {"one sample", {1, 3, m}}};
  if (m % 2 == 0) {
    result.push_back({"two samples", {2, 3, m / 2, 1}});
    result.push_back({"channels-last", {2, 3, 1, m / 2}, MemoryFormat::channels_last});
  }
  return result;
}

class BatchNormFaults : public test::EachDevice {
 protected:
  TensorOptions options(DType dtype = DType::f64) const {
    return {.dtype = dtype, .device = GetParam()};
  }
  Tensor tensor(const Values& values, const Shape& shape, DType dtype = DType::f64) const {
    return Tensor::from_vector(values, shape, options(dtype));
  }
  Tensor tensor(const Values& values, const Layout& layout, DType dtype) const {
    TensorOptions in = options(dtype);
    in.format = layout.format;
    return Tensor::from_vector(layout.spread(values), layout.shape, in);
  }
  BatchNormState fresh_state(int64_t c, DType dtype = DType::f64) const {
    return {Tensor::zeros({c}, options(dtype)), Tensor::ones({c}, options(dtype)),
            Tensor::zeros({1}, options(DType::i64))};
  }
};
GRADUS_ON_EACH_DEVICE(BatchNormFaults);

TEST_P(BatchNormFaults, D001_LargeConstantChannelStaysFinite) {
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    TensorOptions in = options(DType::f32);
    in.format = format;
    const Tensor y = batch_norm(Tensor::full({1, 1, 513, 1025}, 3.3, in));
    for (const float value : y.to_vector<float>()) ASSERT_LE(std::abs(value), 1e-3f);
    in.dtype = DType::f64;  // which does not hold the square
    const Tensor far = batch_norm(Tensor::full({2, 3, 2, 2}, 0x1p520, in));
    for (const double value : far.to_vector<double>()) ASSERT_EQ(value, 0);
  }
}

TEST_P(BatchNormFaults, D002_LargeMeanDoesNotCancel) {
  const Values dx{0.7071916, -0.7070785, 0.7069654, -0.7070785};
  for (const Layout& layout : layouts(4)) {
    SCOPED_TRACE(layout.name);
    Tensor x = tensor({19999.5, 20000, 20000.5, 20000}, layout, DType::f32);
    x.set_requires_grad(true);
    const Tensor y = batch_norm(x);
    expect_near(y, layout.spread({-1.414157, 0, 1.414157, 0}), 1e-4);
    y.backward(tensor({1, 0, 0, 0}, layout, DType::f32));
    expect_near(x.grad(), layout.spread(dx), 1e-4);
  }
}

TEST_P(BatchNormFaults, D003_NonCentredDataOnBothDevices) {
  for (const Layout& layout : layouts(4)) {
    for (const DType dtype : kDTypes) {
      SCOPED_TRACE(std::string(layout.name) + ", " + std::string(to_string(dtype)));
      const double tolerance = dtype == DType::bf16 ? 4e-3 : dtype == DType::f16 ? 5e-4 : 1e-5;
      const Tensor y = batch_norm(tensor({4.875, 5.0, 5.125, 5.0}, layout, dtype));
      expect_near(y, layout.spread({-1.413309, 0, 1.413309, 0}), tolerance);
    }
  }
}

TEST_P(BatchNormFaults, D004_LongSumsKeepTheirDigits) {
  std::vector<float> values(1 << 24);
  for (size_t i = 0; i < values.size(); ++i) values[i] = i % 2 ? 0.3f : 0.1f;
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    TensorOptions in = options(DType::f32);
    in.format = format;
    const Tensor y = batch_norm(Tensor::from_vector(values, {1, 1, 4096, 4096}, in));
    const std::vector<float> got = y.to_vector<float>();
    for (size_t i = 0; i < got.size(); i += 65537)
      ASSERT_NEAR(got[i], i % 2 ? 0.9995004 : -0.9995004, 1e-4);
  }
}

TEST_P(BatchNormFaults, D005_OverflowOfTheVarianceGivesBeta) {
  // (1e30)² is beyond f32: rstd becomes 0 and y beta, on both devices.
  const Tensor beta = Tensor::full({3}, 0.5, options(DType::f32));
  for (const Layout& layout : layouts(4)) {
    for (const Values& values : {Values{1e30, -1e30, 1e30, -1e30}, {1e30, 1e30, -1e30, -1e30}})
      expect_near(batch_norm(tensor(values, layout, DType::f32), {}, beta), Values(12, 0.5), 0);
  }
  // Each sample for itself has no variance.
  const Tensor x = tensor({1e30, 1e30, -1e30, -1e30}, {2, 1, 2}, DType::f32);
  expect_near(batch_norm(x, {}, beta.slice(0, 0, 1)), Values(4, 0.5), 0);
}

TEST_P(BatchNormFaults, D008_EpsilonOfTheLayerIsUsed) {
  for (const double eps : {1e-6, 1e-5, 0.5}) {
    nn::BatchNorm1d layer(1, eps);
    layer.to(GetParam());
    layer.eval();
    const double want = 0.02 / std::sqrt(1 + eps);
    expect_near(layer.forward(tensor({0.02, 0.02}, {2, 1}, DType::f32)), {want, want}, 1e-8);
    layer.train();
    const double spread = 0.02 / std::sqrt(0.0004 + eps);
    expect_near(layer.forward(tensor({0.02, -0.02}, {2, 1}, DType::f32)), {spread, -spread}, 2e-6);
  }
}

TEST_P(BatchNormFaults, D009_EpsilonIsInsideTheRoot) {
  const BatchNormState state{
      Tensor::full({3}, 0.002, options()), Tensor::full({3}, 4e-6, options()), {}};
  for (const Layout& layout : layouts(2)) {
    const Tensor y =
        batch_norm(tensor({0, 0.004}, layout, DType::f64), {}, {}, state, {.training = false});
    expect_near(y, layout.spread({-0.5345225, 0.5345225}), 1e-7);
  }
}

TEST_P(BatchNormFaults, D010_EpsilonStaysOutOfTheRunningVariance) {
  for (const Layout& layout : layouts(4)) {
    const BatchNormState state = fresh_state(3);
    batch_norm(tensor({3, 3, 3, 3}, layout, DType::f64), {}, {}, state, {.eps = 0.5});
    expect_near(state.running_var, Values(3, 0.9), 1e-15);
    expect_near(state.running_mean, Values(3, 0.3), 1e-15);
  }
}

TEST_P(BatchNormFaults, D011_RunningVarianceIsUnbiased) {
  for (const Layout& layout : layouts(4)) {
    for (const DType dtype : kDTypes) {
      SCOPED_TRACE(std::string(layout.name) + ", " + std::string(to_string(dtype)));
      const BatchNormState state = fresh_state(3, acc_dtype(dtype));
      const Tensor y = batch_norm(tensor({1, 2, 3, 6}, layout, dtype), {}, {}, state);
      const double tolerance = dtype == DType::bf16 ? 8e-3 : dtype == DType::f16 ? 1e-3 : 1e-6;
      expect_near(y, layout.spread({-1.069043, -0.5345217, 0, 1.603565}), tolerance);
      expect_near(state.running_mean, Values(3, 0.3), 1e-7);
      expect_near(state.running_var, Values(3, 1.3666666666666667), 2e-7);
    }
  }
}

TEST_P(BatchNormFaults, D012_RunningStatisticsOverSeveralSteps) {
  for (const Layout& layout : layouts(4)) {
    const BatchNormState state = fresh_state(3);
    for (int step = 0; step < 3; ++step)
      batch_norm(tensor({0, 2, 4, 6}, layout, DType::f64), {}, {}, state);
    expect_near(state.running_mean, Values(3, 0.813), 1e-12);
    expect_near(state.running_var, Values(3, 0.729 + 0.271 * 20 / 3), 1e-12);
    EXPECT_EQ(state.batches.item<int64_t>(), 3);
  }
}

TEST_P(BatchNormFaults, D013_CumulativeAverage) {
  const Values batches[] = {{1, 3}, {2, 6}, {8, 10}};
  const double means[] = {2, 3, 5}, vars[] = {2, 5, 4};
  const BatchNormOptions cumulative{.cumulative = true};
  for (const Layout& layout : layouts(2)) {
    const BatchNormState state = fresh_state(3);
    for (size_t i = 0; i < 3; ++i) {
      batch_norm(tensor(batches[i], layout, DType::f64), {}, {}, state, cumulative);
      expect_near(state.running_mean, Values(3, means[i]), 1e-12);
      expect_near(state.running_var, Values(3, vars[i]), 1e-12);
    }
    EXPECT_EQ(state.batches.item<int64_t>(), 3);
    batch_norm(tensor({7, 9}, layout, DType::f64), {}, {}, state,
               {.training = false, .cumulative = true});
    EXPECT_EQ(state.batches.item<int64_t>(), 3);
    expect_near(state.running_mean, Values(3, 5.0), 1e-12);
  }
}

TEST_P(BatchNormFaults, D014_EmptyBatchChangesNothing) {
  for (const DType dtype : kDTypes) {
    const DType acc = acc_dtype(dtype);
    const BatchNormState state = fresh_state(5, acc);
    Tensor x = Tensor::zeros({0, 5, 9}, options(dtype)).set_requires_grad(true);
    Tensor gamma = Tensor::ones({5}, options(acc)).set_requires_grad(true);
    Tensor beta = Tensor::zeros({5}, options(acc)).set_requires_grad(true);
    const Tensor y = batch_norm(x, gamma, beta, state);
    EXPECT_EQ(to_string(y.shape()), "[0,5,9]");
    sum(y).backward();
    expect_near(state.running_mean, Values(5, 0.0), 0);
    expect_near(state.running_var, Values(5, 1.0), 0);
    EXPECT_EQ(state.batches.item<int64_t>(), 0);
    expect_near(gamma.grad(), Values(5, 0.0), 0);
    expect_near(beta.grad(), Values(5, 0.0), 0);
  }
}

TEST_P(BatchNormFaults, D016_EvaluationReadsNoStatisticsOfTraining) {
  const BatchNormState pinned{Tensor::ones({3}, options()), Tensor::full({3}, 0.25, options()), {}};
  for (const Layout& layout : layouts(4)) {
    batch_norm(tensor({10, 20, 30, 40}, layout, DType::f64), {}, {}, fresh_state(3));
    for (int run = 0; run < 2; ++run) {
      Tensor x = tensor({0, 1, 2, 1}, layout, DType::f64).set_requires_grad(true);
      const Tensor y = batch_norm(x, {}, {}, pinned, {.training = false, .eps = 0});
      expect_near(y, layout.spread({-2, 0, 2, 0}), 0);
      y.backward(tensor({1, -3, 5, 7}, layout, DType::f64));
      expect_near(x.grad(), layout.spread({2, -6, 10, 14}), 0);
    }
  }
}

TEST_P(BatchNormFaults, D025_GradientsAddUp) {
  for (const Layout& layout : layouts(3)) {
    Tensor x = tensor({1, 2, 4}, layout, DType::f64).set_requires_grad(true);
    Tensor gamma = Tensor::ones({3}, options()).set_requires_grad(true);
    Tensor beta = Tensor::zeros({3}, options()).set_requires_grad(true);
    for (int i = 0; i < 3; ++i)
      batch_norm(x, gamma, beta).backward(tensor({1, 0, 2}, layout, DType::f64));
    expect_near(x.grad(), layout.spread({1.37447, -2.06173, 0.687252}), 1e-5);
    expect_near(gamma.grad(), Values(3, 4.810687), 1e-6);
    expect_near(beta.grad(), Values(3, 9.0), 0);
  }
}

TEST_P(BatchNormFaults, D027_EveryMaskOfWantedGradients) {
  const Values values{1, 5, 2, 3, 8, 4, 0, 7}, upstream{1, 2, 3, 4, 5, 6, 7, 8};
  const BatchNormState state{Tensor::ones({3}, options()), Tensor::ones({3}, options()), {}};
  for (const Layout& layout : layouts(8)) {
    for (const bool training : {true, false}) {
      const auto run = [&](int mask) {
        Tensor x = tensor(values, layout, DType::f64).set_requires_grad(mask & 1);
        Tensor gamma = tensor({1, 2, 3}, {3}).set_requires_grad(mask & 2);
        Tensor beta = tensor({0, 1, 0}, {3}).set_requires_grad(mask & 4);
        const Tensor y =
            batch_norm(x, gamma, beta, training ? BatchNormState() : state, {.training = training});
        if (mask != 0) y.backward(tensor(upstream, layout, DType::f64));
        return std::vector<Tensor>{x.grad(), gamma.grad(), beta.grad()};
      };
      const std::vector<Tensor> all = run(7);
      for (int mask = 0; mask < 7; ++mask) {
        const std::vector<Tensor> some = run(mask);
        for (size_t i = 0; i < 3; ++i) {
          ASSERT_EQ(some[i].defined(), ((mask >> i) & 1) != 0) << "mask " << mask << ", " << i;
          if (some[i].defined()) expect_near(some[i], all[i].to_vector<double>(), 0);
        }
      }
    }
  }
}

TEST_P(BatchNormFaults, D028_LayersBeforeItLearn) {
  for (const bool training : {true, false}) {
    nn::Linear linear(2, 2);
    nn::BatchNorm1d norm(2);
    linear.to(GetParam());
    norm.to(GetParam());
    norm.train(training);
    const Tensor x = tensor({1, 2, 3, 5, -1, 4, 0, 2}, {4, 2}, DType::f32);
    const Tensor weights = tensor({1, 3}, {1, 2}, DType::f32);
    std::vector<Tensor> parameters = linear.parameters();
    for (const Tensor& parameter : norm.parameters()) parameters.push_back(parameter);
    const Values before = linear.weight.to_vector<double>();
    const Values scale = norm.weight.to_vector<double>();
    const Tensor y = norm.forward(linear.forward(x));
    sum(y * y * y * weights).backward();  // of y², training would cancel all but eps
    for (const Tensor& weight : {linear.weight, norm.weight}) {
      ASSERT_TRUE(weight.grad().defined());
      const Values grad = weight.grad().to_vector<double>();
      EXPECT_TRUE(std::any_of(grad.begin(), grad.end(), [](double g) { return g != 0; }));
    }
    nn::SGD(parameters, {.lr = 0.1}).step();
    EXPECT_NE(linear.weight.to_vector<double>(), before);
    EXPECT_NE(norm.weight.to_vector<double>(), scale);
  }
}

TEST_P(BatchNormFaults, D029_StridedRunningStatisticsAreUpdatedInPlace) {
  for (const auto& [values, shape] :
       {std::pair<Values, Shape>{{1, 10, 3, 20}, {2, 2}}, {{1, 3, 10, 20}, {1, 2, 2}}}) {
    const Tensor means = Tensor::zeros({4}, options()), vars = Tensor::zeros({6}, options());
    const BatchNormState state{means.slice(0, 0, 4, 2), vars.slice(0, 0, 6, 3), {}};
    batch_norm(tensor(values, shape), {}, {}, state, {.momentum = 1});
    expect_near(means, {2, 0, 15, 0}, 0);
    expect_near(vars, {2, 0, 0, 50, 0, 0}, 1e-13);
  }
}

TEST_P(BatchNormFaults, StridedParametersAreThoseOfTheirChannels) {
  for (const bool training : {true, false}) {
    const BatchNormState state = training ? BatchNormState{} : fresh_state(3);
    const auto run = [&](const Tensor& gamma, const Tensor& beta) {
      Tensor x = tensor({1, 5, 2, 3, 4, 8}, {2, 3}).set_requires_grad(true);
      const Tensor y = batch_norm(x, gamma, beta, state, {.training = training});
      y.backward(y.detach());
      return std::pair{y.to_vector<double>(), x.grad().to_vector<double>()};
    };
    const Tensor gammas = tensor({2, 9, 3, 9, 4}, {5}), betas = tensor({7, 9, 9, 6, 9, 9, 5}, {7});
    EXPECT_EQ(run(gammas.slice(0, 0, 5, 2), betas.slice(0, 0, 7, 3)),
              run(tensor({2, 3, 4}, {3}), tensor({7, 6, 5}, {3})));
  }
}

TEST_P(BatchNormFaults, D030_WrongLengthsAreNamedBeforeAnyLaunch) {
  const Tensor x = tensor(Values(6, 1.0), {2, 3});
  const Tensor one = tensor({1}, {1}), two = tensor({1, 2}, {2}), three = tensor({1, 2, 3}, {3});
  const std::string at = GetParam() == kCpu ? "@cpu" : "@cuda:0";
  EXPECT_ERROR(
      batch_norm(x, {}, {}, {one, one, {}}, {.training = false}), ErrorCode::invalid_argument,
      "batch_norm: running_mean must have one entry for each of the 3 channels of f64[2,3]" + at +
          ", got f64[1]" + at);
  EXPECT_ERROR(batch_norm(x, {}, {}, {three, one, {}}), ErrorCode::invalid_argument,
               "batch_norm: running_var must have one entry for each of the 3 channels");
  EXPECT_ERROR(batch_norm(x, two), ErrorCode::invalid_argument,
               "batch_norm: gamma must have one entry for each of the 3 channels");
  EXPECT_ERROR(batch_norm(x, {}, two), ErrorCode::invalid_argument,
               "batch_norm: beta must have one entry for each of the 3 channels");
  EXPECT_ERROR(batch_norm(x, three.to(DType::f32)), ErrorCode::invalid_argument,
               "batch_norm: gamma must be f64");
  EXPECT_ERROR(batch_norm(tensor({1, 2}, {1, 2})), ErrorCode::invalid_argument,
               "batch_norm: training needs more than one value per channel");
  const Tensor trained = three.clone().set_requires_grad(true);
  EXPECT_ERROR(batch_norm(x, {}, {}, {three, trained, {}}), ErrorCode::invalid_argument,
               "batch_norm: running statistics have no gradient");
  expect_near(one, {1}, 0);
}

TEST_P(BatchNormFaults, D101_MoreRowsThanAGridAxisHolds) {
  Values rows(131072, 2.0);
  rows[0] = 4;
  for (const Shape& shape : {Shape{131072, 1}, Shape{131072, 1, 1}, Shape{65536, 1, 2}}) {
    const BatchNormState state = fresh_state(1, DType::f32);
    batch_norm(tensor(rows, shape, DType::f32), {}, {}, state, {.momentum = 1});
    EXPECT_NEAR(state.running_mean.item<double>(), 2 + 2.0 / 131072, 1e-6);
  }
  const int64_t n = 147000, c = 100;
  const Tensor x = Tensor::full({n, c}, 2.0, options(DType::f32));
  const BatchNormState identity{
      Tensor::zeros({c}, options(DType::f32)), Tensor::ones({c}, options(DType::f32)), {}};
  const Tensor y = batch_norm(x, {}, {}, identity, {.training = false, .eps = 0});
  for (const float value : y.to_vector<float>()) ASSERT_EQ(value, 2.0f);
}

TEST_P(BatchNormFaults, D102_MoreChannelsThanAGridAxisHolds) {
  const int64_t c = 70000;
  for (const Shape& shape : {Shape{2, c}, Shape{1, c, 2}}) {
    const bool rows = shape.rank() == 2;
    Values values(static_cast<size_t>(2 * c));
    const auto at = [&](size_t row, size_t channel) {
      return rows ? row * static_cast<size_t>(c) + channel : 2 * channel + row;
    };
    for (size_t channel = 0; channel < static_cast<size_t>(c); ++channel)
      values[at(1, channel)] = 2;
    Tensor x = tensor(values, shape, DType::f32).set_requires_grad(true);
    Tensor gamma = Tensor::ones({c}, options(DType::f32)).set_requires_grad(true);
    const Tensor y = batch_norm(x, gamma, {}, {}, {.eps = 0});
    y.backward(y.detach());
    const Values got = y.to_vector<double>(), dgamma = gamma.grad().to_vector<double>();
    const Values dx = x.grad().to_vector<double>();
    for (const size_t channel : {0, 65535, 65536, 69999}) {
      EXPECT_EQ(got[at(0, channel)], -1);
      EXPECT_EQ(got[at(1, channel)], 1);
      EXPECT_EQ(dgamma[channel], 2);
      EXPECT_EQ(dx[at(0, channel)], 0);  // dy = xhat: stretching takes all of it away
    }
  }
}

}  // namespace
}  // namespace gradus
