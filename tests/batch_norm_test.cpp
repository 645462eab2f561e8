#include "autograd/ops/batch_norm.h"

#include <algorithm>
#include <cmath>

#include "autograd/ops/arithmetic.h"
#include "autograd/ops/sum.h"
#include "tests/support/compare_gtest.h"
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

// Runs on the CPU and, where there is one, on the GPU.
class BatchNorm : public testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    if (GetParam().type == DeviceType::cuda && !has_gpu()) GTEST_SKIP() << "no GPU";
  }
  Tensor tensor(const Values& values, const Shape& shape, DType dtype = DType::f64) {
    return Tensor::from_vector(values, shape, {.dtype = dtype, .device = GetParam()});
  }
  BatchNormState fresh_state(int64_t c, DType dtype = DType::f64) {
    const TensorOptions options{.dtype = dtype, .device = GetParam()};
    return {Tensor::zeros({c}, options), Tensor::ones({c}, options),
            Tensor::zeros({1}, {.dtype = DType::i64, .device = GetParam()})};
  }
};
INSTANTIATE_TEST_SUITE_P(On, BatchNorm, testing::Values(kCpu, kCuda),
                         [](const auto& info) { return info.param == kCpu ? "Cpu" : "Cuda"; });

TEST_P(BatchNorm, LargeMeanDoesNotCancel) {
  Tensor x = tensor({19999.5, 20000, 20000.5, 20000}, {4, 1}, DType::f32).set_requires_grad(true);
  Tensor y = batch_norm(x);
  expect_near(y, {-1.414157, 0, 1.414157, 0}, 1e-4);
  y.backward(tensor({1, 0, 0, 0}, {4, 1}, DType::f32));
  expect_near(x.grad(), {0.7071916, -0.7070785, 0.7069654, -0.7070785}, 1e-4);
}

TEST_P(BatchNorm, NonCentredDataInHalfPrecision) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const Tensor y = batch_norm(tensor({4.875, 5.0, 5.125, 5.0}, {4, 1}, dtype));
    expect_near(y, {-1.413309, 0, 1.413309, 0}, dtype == DType::bf16 ? 4e-3 : 1e-5);
  }
}

TEST_P(BatchNorm, LargeConstantChannelStaysFinite) {
  const Tensor x =
      Tensor::full({1, 1, 513, 1025}, 3.3, {.dtype = DType::f32, .device = GetParam()});
  for (const double value : batch_norm(x).to_vector<double>()) ASSERT_LE(std::abs(value), 1e-3);
}

TEST_P(BatchNorm, LongSumsKeepTheirDigits) {
  std::vector<float> values(1 << 24);
  for (size_t i = 0; i < values.size(); ++i) values[i] = i % 2 ? 0.3f : 0.1f;
  const Tensor x =
      Tensor::from_vector(values, {1, 1, 4096, 4096}, {.dtype = DType::f32, .device = GetParam()});
  const std::vector<float> y = batch_norm(x).to_vector<float>();
  for (size_t i = 0; i < y.size(); i += 65537)
    ASSERT_NEAR(y[i], i % 2 ? 0.9995004 : -0.9995004, 1e-4);
}

TEST_P(BatchNorm, OverflowOfTheVarianceGivesBeta) {
  // (1e30)² is beyond f32: rstd becomes 0 and y beta, on both devices.
  const Tensor y = batch_norm(tensor({1e30, -1e30, 1e30, -1e30}, {4, 1}, DType::f32), {},
                              tensor({0.5}, {1}, DType::f32));
  expect_near(y, {0.5, 0.5, 0.5, 0.5}, 0);
}

TEST_P(BatchNorm, EpsilonIsInsideTheRoot) {
  const BatchNormState state{tensor({0.002}, {1}), tensor({4e-6}, {1}), {}};
  const Tensor y = batch_norm(tensor({0, 0.004}, {2, 1}), {}, {}, state, {.training = false});
  expect_near(y, {-0.5345225, 0.5345225}, 1e-7);
}

TEST_P(BatchNorm, EpsilonStaysOutOfTheRunningVariance) {
  const BatchNormState state = fresh_state(1);
  batch_norm(tensor({3, 3, 3, 3}, {4, 1}), {}, {}, state, {.eps = 0.5});
  EXPECT_DOUBLE_EQ(state.running_var.item<double>(), 0.9);
  EXPECT_DOUBLE_EQ(state.running_mean.item<double>(), 0.1 * 3.0);
}

TEST_P(BatchNorm, RunningVarianceIsUnbiased) {
  const BatchNormState state = fresh_state(1);
  const Tensor y = batch_norm(tensor({1, 2, 3, 6}, {4, 1}), {}, {}, state);
  expect_near(y, {-1.069043, -0.5345217, 0, 1.603565}, 1e-6);
  EXPECT_NEAR(state.running_mean.item<double>(), 0.3, 1e-12);
  EXPECT_NEAR(state.running_var.item<double>(), 1.3666666666666667, 1e-12);
}

TEST_P(BatchNorm, RunningStatisticsOverSeveralSteps) {
  const BatchNormState state = fresh_state(1);
  for (int step = 0; step < 3; ++step)
    batch_norm(tensor({0, 2, 4, 6}, {2, 1, 1, 2}), {}, {}, state);
  EXPECT_NEAR(state.running_mean.item<double>(), 0.813, 1e-12);
  EXPECT_NEAR(state.running_var.item<double>(), 0.729 + 0.271 * 20 / 3, 1e-12);
  EXPECT_EQ(state.batches.item<int64_t>(), 3);
}

TEST_P(BatchNorm, CumulativeAverage) {
  const BatchNormState state = fresh_state(1);
  const BatchNormOptions options{.cumulative = true};
  const Values batches[] = {{1, 3}, {2, 6}, {8, 10}};
  const double means[] = {2, 3, 5}, vars[] = {2, 5, 4};
  for (int i = 0; i < 3; ++i) {
    batch_norm(tensor(batches[i], {2, 1}), {}, {}, state, options);
    EXPECT_NEAR(state.running_mean.item<double>(), means[i], 1e-12);
    EXPECT_NEAR(state.running_var.item<double>(), vars[i], 1e-12);
  }
  EXPECT_EQ(state.batches.item<int64_t>(), 3);
  batch_norm(tensor({7, 9}, {2, 1}), {}, {}, state, {.training = false, .cumulative = true});
  EXPECT_EQ(state.batches.item<int64_t>(), 3);
  EXPECT_NEAR(state.running_mean.item<double>(), 5, 1e-12);
}

TEST_P(BatchNorm, EmptyBatchChangesNothing) {
  const BatchNormState state = fresh_state(5);
  Tensor x = tensor({}, {0, 5, 9}).set_requires_grad(true);
  Tensor gamma = Tensor::ones({5}, x.options()).set_requires_grad(true);
  Tensor beta = Tensor::zeros({5}, x.options()).set_requires_grad(true);
  Tensor y = batch_norm(x, gamma, beta, state);
  EXPECT_EQ(to_string(y.shape()), "[0,5,9]");
  sum(y).backward();
  expect_near(state.running_mean, Values(5, 0.0), 0);
  expect_near(state.running_var, Values(5, 1.0), 0);
  EXPECT_EQ(state.batches.item<int64_t>(), 0);
  expect_near(gamma.grad(), Values(5, 0.0), 0);
  expect_near(beta.grad(), Values(5, 0.0), 0);
}

TEST_P(BatchNorm, EvaluationReadsNoStatisticsOfTraining) {
  const BatchNormState pinned{tensor({1}, {1}), tensor({0.25}, {1}), {}};
  batch_norm(tensor({10, 20, 30}, {3, 1}), {}, {}, fresh_state(1));
  for (int run = 0; run < 2; ++run) {
    Tensor x = tensor({0, 1, 2}, {3, 1}).set_requires_grad(true);
    Tensor y = batch_norm(x, {}, {}, pinned, {.training = false, .eps = 0});
    expect_near(y, {-2, 0, 2}, 0);
    y.backward(tensor({1, -3, 5}, {3, 1}));
    expect_near(x.grad(), {2, -6, 10}, 0);
  }
}

TEST_P(BatchNorm, EvaluationGradientDoesNotReadX) {
  Tensor x = tensor({1, INFINITY, 3, 4}, {4, 1}).set_requires_grad(true);
  const BatchNormState state{tensor({0}, {1}), tensor({4}, {1}), {}};
  batch_norm(x, {}, {}, state, {.training = false, .eps = 0})
      .backward(tensor({2, 4, 6, 8}, {4, 1}));
  expect_near(x.grad(), {1, 2, 3, 4}, 0);
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

TEST_P(BatchNorm, GradientsAddUp) {
  Tensor x = tensor({1, 2, 4}, {3, 1}).set_requires_grad(true);
  Tensor gamma = tensor({1}, {1}).set_requires_grad(true);
  Tensor beta = tensor({0}, {1}).set_requires_grad(true);
  for (int i = 0; i < 3; ++i) batch_norm(x, gamma, beta).backward(tensor({1, 0, 2}, {3, 1}));
  expect_near(x.grad(), {1.37447, -2.06173, 0.687252}, 1e-5);
  expect_near(gamma.grad(), {4.810687}, 1e-6);
  expect_near(beta.grad(), {9}, 0);
}

TEST_P(BatchNorm, EveryMaskOfWantedGradients) {
  const Values values{1, 5, 2, 3, 8, 4, 0, 7}, upstream{1, 2, 3, 4, 5, 6, 7, 8};
  const auto run = [&](int mask) {
    Tensor x = tensor(values, {2, 4, 1}).set_requires_grad(mask & 1);
    Tensor gamma = tensor({1, 2, 3, 4}, {4}).set_requires_grad(mask & 2);
    Tensor beta = tensor({0, 1, 0, 1}, {4}).set_requires_grad(mask & 4);
    Tensor y = batch_norm(x, gamma, beta);
    if (mask != 0) y.backward(tensor(upstream, {2, 4, 1}));
    return std::vector<Tensor>{x.grad(), gamma.grad(), beta.grad()};
  };
  const std::vector<Tensor> all = run(7);
  for (int mask = 0; mask < 7; ++mask) {
    const std::vector<Tensor> some = run(mask);
    for (size_t i = 0; i < 3; ++i) {
      ASSERT_EQ(some[i].defined(), ((mask >> i) & 1) != 0) << "mask " << mask << ", input " << i;
      if (some[i].defined()) expect_near(some[i], all[i].to_vector<double>(), 0);
    }
  }
}

TEST_P(BatchNorm, StridedRunningStatisticsAreUpdatedInPlace) {
  const Tensor buffer = tensor({0, 0, 0, 0}, {4});
  const BatchNormState state{buffer.slice(0, 0, 4, 2), Tensor::ones({2}, buffer.options()), {}};
  batch_norm(tensor({1, 10, 3, 20}, {2, 2}), {}, {}, state, {.momentum = 1});
  expect_near(buffer, {2, 0, 15, 0}, 0);
}

TEST_P(BatchNorm, WrongParameterLengthsAreNamed) {
  const Tensor x = tensor(Values(6, 1.0), {2, 3});
  const auto text_of = [&](const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return std::string(error.what());
    }
    return std::string();
  };
  const Tensor one = tensor({1}, {1});
  EXPECT_NE(text_of([&] {
              batch_norm(x, {}, {}, {one, one, {}}, {.training = false});
            }).find("running_mean must have one entry for each of the 3 channels"),
            std::string::npos);
  EXPECT_NE(text_of([&] {
              batch_norm(x, tensor({1, 2}, {2}));
            }).find("gamma must have one entry"),
            std::string::npos);
  EXPECT_NE(text_of([&] {
              batch_norm(tensor({1, 2}, {1, 2}));
            }).find("more than one value per channel"),
            std::string::npos);
}

TEST_P(BatchNorm, ManyRowsAndManyChannels) {
  Values rows(131072, 2.0);
  rows[0] = 4;
  const BatchNormState state = fresh_state(1, DType::f32);
  batch_norm(tensor(rows, {131072, 1}, DType::f32), {}, {}, state, {.momentum = 1});
  EXPECT_NEAR(state.running_mean.item<double>(), 2 + 2.0 / 131072, 1e-6);

  Values channels(2 * 70000, 0.0);
  std::fill(channels.begin() + 70000, channels.end(), 2.0);
  Tensor x = tensor(channels, {2, 70000}, DType::f32).set_requires_grad(true);
  Tensor gamma = Tensor::ones({70000}, x.options()).set_requires_grad(true);
  Tensor y = batch_norm(x, gamma, {}, {}, {.eps = 0});
  y.backward(y.detach());
  const Values got = y.to_vector<double>(), dgamma = gamma.grad().to_vector<double>();
  for (const size_t c : {0, 65535, 65536, 69999}) {
    EXPECT_EQ(got[c], -1);
    EXPECT_EQ(got[70000 + c], 1);
    EXPECT_EQ(dgamma[c], 2);
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

// Backward variants, each wrong in one way: the comparison that the kernels pass must reject them
// all.
TEST(BatchNormMutants, AreAllRejected) {
  struct Mutant {
    const char* name;
    double m1, m2, count, gamma_power, stale;
  };
  const Mutant mutants[] = {
      {"right", 1, 1, 0, 1, 0},
      {"no m1", 0, 1, 0, 1, 0},
      {"no m2", 1, 0, 0, 1, 0},
      {"neither (evaluation formula)", 0, 0, 0, 1, 0},
      {"count m - 1", 1, 1, -1, 1, 0},
      {"count n alone", 1, 1, -100, 1, 0},
      {"gamma forgotten", 1, 1, 0, 0, 0},
      {"gamma twice", 1, 1, 0, 2, 0},
      {"stale statistics", 1, 1, 0, 1, 1},
  };
  for (const OpCase& op_case : test_cases_of("batch_norm")) {
    if (op_case.name.find("train") == std::string::npos || op_case.inputs.size() < 2) continue;
    SCOPED_TRACE(op_case.name);
    const auto in = draw_inputs(op_case, DType::f64, 7);
    const ref::Array &x = in[0], &gamma = in[1];
    const ref::Array dy = draw_upstream(x.shape, DType::f64, 8);
    const ref::Array want = op_case.reference_backward(in, dy)[0];
    const int64_t n = x.shape[0], c = x.shape[1], s = x.numel() / (n * c);
    const auto stats = ref::batch_norm_train(x, {}, {}, 1e-5);
    for (const Mutant& mutant : mutants) {
      ref::Array dx = ref::zeros(x.shape);
      for (int64_t k = 0; k < c; ++k) {
        const double mean = stats.mean[k] + 0.05 * mutant.stale, rstd = stats.rstd[k];
        double sum_dy = 0, sum_dy_xhat = 0;
        for (int64_t i = 0; i < n * s; ++i) {
          const int64_t at = (i / s * c + k) * s + i % s;
          sum_dy += dy[at];
          sum_dy_xhat += dy[at] * (x[at] - mean) * rstd;
        }
        const double count = mutant.count < -1 ? static_cast<double>(n) + (s == 1 ? 1 : 0)
                                               : static_cast<double>(n * s) + mutant.count;
        for (int64_t i = 0; i < n * s; ++i) {
          const int64_t at = (i / s * c + k) * s + i % s;
          const double xhat = (x[at] - mean) * rstd;
          dx[at] = std::pow(gamma[k], mutant.gamma_power) * rstd *
                   (dy[at] - mutant.m1 * sum_dy / count - mutant.m2 * xhat * sum_dy_xhat / count);
        }
      }
      const bool accepted = static_cast<bool>(
          compare(dx.data, want.data, DType::f64, op_case.reduction, op_case.scale));
      EXPECT_EQ(accepted, std::string(mutant.name) == "right") << mutant.name;
    }
  }
}

}  // namespace
}  // namespace gradus
