// Known faults of group and instance normalization elsewhere, by family.
#include <algorithm>
#include <cmath>

#include "autograd/ops/arithmetic.h"
#include "autograd/ops/group_norm.h"
#include "autograd/ops/instance_norm.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/sum.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/each_device.h"
#include "tests/support/expect_error.h"

namespace gradus {
namespace {

using Values = std::vector<double>;

void expect_near(const Tensor& got, const Values& want, double tolerance) {
  const Values values = got.to_vector<double>();
  ASSERT_EQ(values.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(values[i], want[i], tolerance) << "at " << i;
}

class GroupNormFaults : public test::EachDevice {
 protected:
  Tensor tensor(const Values& values, const Shape& shape, DType dtype = DType::f32) {
    return Tensor::from_vector(values, shape, {.dtype = dtype, .device = GetParam()});
  }
  Tensor ones(const Shape& shape, DType dtype = DType::f32) {
    return Tensor::ones(shape, {.dtype = dtype, .device = GetParam()});
  }
};
GRADUS_ON_EACH_DEVICE(GroupNormFaults);

TEST_P(GroupNormFaults, D001_ConstantGroupsStayFinite) {
  for (const int64_t c : {1, 8}) {
    const Tensor x = affine(ones({1, c, 513, 1025}), 3.3);
    const std::vector<float> y = group_norm(x, c).to_vector<float>();
    for (size_t i = 0; i < y.size(); ++i) ASSERT_LE(std::abs(y[i]), 1e-3f) << i;
  }
}

// Of equal values the mean is the value, whatever the sum over 3 rows or 1936 elements is.
TEST_P(GroupNormFaults, D001_ConstantGroupsGiveBeta) {
  const auto all_are_zero = [](const Tensor& y) {
    for (const double value : y.to_vector<double>()) ASSERT_EQ(value, 0);
  };
  for (const double c : {1000.0, 8191.0, 10922.7, 20000.3, 60000.0}) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
        SCOPED_TRACE(concat(c, " ", dtype, " ", to_string(format)));
        const auto image = [&](const Shape& shape) {
          return affine(ones(shape, dtype), c).contiguous(format);
        };
        all_are_zero(group_norm(image({2, 96, 8, 8}), 32));
        all_are_zero(instance_norm(image({2, 3, 44, 44})));
        all_are_zero(group_norm(image({1, 32, 60, 60}), 8));
        all_are_zero(group_norm(image({1, 16, 120, 120}), 4));
      }
    }
  }
}

// The square of their mean is beyond f64, and their variance is 0.
TEST_P(GroupNormFaults, D001_ConstantGroupsFarFromZeroGiveBeta) {
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor x = Tensor::full({2, 4, 2, 2}, 0x1p520,
                                  {.dtype = DType::f64, .device = GetParam(), .format = format});
    for (const double y : group_norm(x, 2).to_vector<double>()) ASSERT_EQ(y, 0);
    for (const double y : instance_norm(x).to_vector<double>()) ASSERT_EQ(y, 0);
    const Tensor rows = x.contiguous().reshape({2, 16});
    for (const double y : group_norm(rows, 2).to_vector<double>()) ASSERT_EQ(y, 0);
  }
}

TEST_P(GroupNormFaults, D002_LargeMeanDoesNotCancel) {
  for (const bool channels_last : {false, true}) {
    const auto format = channels_last ? MemoryFormat::channels_last : MemoryFormat::contiguous;
    // Four values of each of two groups, so that the formats differ.
    const Values values{19999.5, 20000, 20000.5, 20000, 19999.5, 20000, 20000.5, 20000};
    Tensor x =
        tensor(values, {1, 2, 2, 2}).contiguous(format).detach().clone().set_requires_grad(true);
    const Tensor y = group_norm(x, 2);
    expect_near(y, {-1.414157, 0, 1.414157, 0, -1.414157, 0, 1.414157, 0}, 1e-4);
    y.backward(tensor({1, 0, 0, 0, 1, 0, 0, 0}, {1, 2, 2, 2}));
    const Values dx{0.7071916, -0.7070785, 0.7069654, -0.7070785};
    expect_near(x.grad(), {dx[0], dx[1], dx[2], dx[3], dx[0], dx[1], dx[2], dx[3]}, 1e-4);
  }
}

TEST_P(GroupNormFaults, D003_NonCentredDataInHalfPrecision) {
  for (const DType dtype : {DType::bf16, DType::f32, DType::f16}) {
    const Tensor y = instance_norm(tensor({4.875, 5.0, 5.125, 5.0}, {1, 1, 4}, dtype));
    expect_near(y, {-1.413309, 0, 1.413309, 0}, dtype == DType::f32 ? 1e-5 : 4e-3);
  }
}

TEST_P(GroupNormFaults, D004_LongSumsKeepTheirDigits) {
  std::vector<float> values(1 << 24);
  for (size_t i = 0; i < values.size(); ++i) values[i] = i % 2 ? 0.3f : 0.1f;
  const Tensor x =
      Tensor::from_vector(values, {1, 1, 4096, 4096}, {.dtype = DType::f32, .device = GetParam()});
  NormStatistics saved;
  const std::vector<float> y = group_norm(x, 1, {}, {}, 1e-5, &saved).to_vector<float>();
  expect_near(saved.mean, {0.2}, 1e-6);
  for (size_t i = 0; i < y.size(); i += 65537)
    ASSERT_NEAR(y[i], i % 2 ? 0.9995004 : -0.9995004, 1e-4);
}

TEST_P(GroupNormFaults, D005_OverflowOfTheVarianceGivesBeta) {
  // (1e30)² is beyond f32: rstd becomes 0 and y beta, on both devices and in both formats.
  const Tensor x = tensor({1e30, -1e30, 1e30, -1e30}, {1, 1, 4}), beta = tensor({0.5}, {1});
  expect_near(group_norm(x, 1, {}, beta), {0.5, 0.5, 0.5, 0.5}, 0);
  const Tensor image = tensor({1e30, -1e30, 1e30, -1e30, 1e30, -1e30, 1e30, -1e30}, {1, 2, 2, 2});
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
    expect_near(group_norm(image.contiguous(format), 2), Values(8, 0.0), 0);
  Values halves(8192, 0.0);  // each channel for itself has no variance
  std::fill(halves.begin() + 4096, halves.end(), 1e25);
  const Tensor channels = tensor(halves, {1, 2, 64, 64});
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
    expect_near(group_norm(channels.contiguous(format), 1), Values(8192, 0.0), 0);
}

TEST_P(GroupNormFaults, D007_SquaresBeyondF16) {
  for (const int64_t length : {511, 512, 513}) {
    Values values(static_cast<size_t>(2 * length));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = i % static_cast<size_t>(length) % 2 ? -256 : 256;
    const Tensor x = tensor(values, {1, 2, length}, DType::f16);
    const Values want =
        group_norm(tensor(values, {1, 2, length}, DType::f64), 2).to_vector<double>();
    EXPECT_TRUE(agrees(group_norm(x, 2).to_vector<double>(), want, DType::f16, length));
  }
}

TEST_P(GroupNormFaults, D008_EpsilonOfTheCallerIsUsed) {
  const Tensor x = tensor({0.02, -0.02, 0.02, -0.02}, {1, 1, 4});
  expect_near(group_norm(x, 1, {}, {}, 1e-6).slice(2, 0, 1), {0.9987523}, 1e-6);
  expect_near(instance_norm(x, {}, {}, {}, {.eps = 1e-5}).slice(2, 0, 1), {0.9877296}, 1e-6);
}

TEST_P(GroupNormFaults, D009_EpsilonIsInsideTheRoot) {
  const Tensor x = tensor({0, 0.004}, {1, 1, 2}, DType::f64);
  expect_near(group_norm(x, 1), {-0.5345225, 0.5345225}, 1e-7);
}

TEST_P(GroupNormFaults, D012_RunningStatisticsOverSeveralSteps) {
  const TensorOptions options{.dtype = DType::f64, .device = GetParam()};
  const InstanceNormState state{Tensor::zeros({1}, options), Tensor::ones({1}, options)};
  for (int step = 0; step < 3; ++step)
    instance_norm(tensor({0, 2, 4, 6}, {1, 1, 2, 2}, DType::f64), {}, {}, state);
  EXPECT_NEAR(state.running_mean.item<double>(), 0.813, 1e-12);
  EXPECT_NEAR(state.running_var.item<double>(), 0.729 + 0.271 * 20 / 3, 1e-12);
}

TEST_P(GroupNormFaults, D017_OneElementPerSetGivesBetaForEveryBatch) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t n : {1, 2}) {
      const Tensor beta = tensor({0.5, -1, 2}, {3}), gamma = tensor({3, 0.3, 0.7}, {3});
      for (const bool training : {true, false}) {
        Values values(static_cast<size_t>(3 * n));
        for (size_t i = 0; i < values.size(); ++i) values[i] = 0.1 + 41.3 * static_cast<double>(i);
        Tensor x = tensor(values, {n, 3, 1, 1}, dtype).set_requires_grad(true);
        Tensor weight = gamma.detach().clone().set_requires_grad(true);
        const Tensor y = training ? group_norm(x, 3, weight, beta)
                                  : instance_norm(x, weight, beta, {}, {.training = false});
        Values want;
        for (int64_t i = 0; i < n; ++i) want.insert(want.end(), {0.5, -1, 2});
        expect_near(y, want, 0);
        y.backward(affine(ones({n, 3, 1, 1}, dtype), 0.7));
        expect_near(x.grad(), Values(static_cast<size_t>(3 * n), 0.0), 0);
        expect_near(weight.grad(), {0, 0, 0}, 0);  // D018, for groups
      }
    }
  }
}

TEST_P(GroupNormFaults, D019_BackwardOfEveryRank) {
  const Values values{1, 2, 4, 8, 16, 32, 3, 1, 4, 1, 5, 9, 2, 7, 1, 8, 2, 8, 1, 4, 1, 4, 2, 1};
  Values upstream(24, 0.0);
  upstream[5] = 1;
  upstream[19] = 2;
  for (const Shape& shape : {Shape{1, 4, 2, 3}, Shape{1, 4, 6}, Shape{1, 4, 1, 2, 3}}) {
    SCOPED_TRACE(to_string(shape));
    Tensor x = tensor(values, shape, DType::f64).set_requires_grad(true);
    Tensor gamma = tensor({1, 2, 3, 4}, {4}, DType::f64).set_requires_grad(true);
    Tensor beta = tensor({0, 0, 0, 0}, {4}, DType::f64).set_requires_grad(true);
    group_norm(x, 2, gamma, beta).backward(tensor(upstream, shape, DType::f64));
    expect_near(gamma.grad(), {2.897166, 0, 0, 0.4385717}, 1e-6);
    expect_near(beta.grad(), {1, 0, 0, 2}, 0);
    const Values dx = x.grad().to_vector<double>();
    const Values first{0.0105417, 0.00725569, 0.000683665, -0.0124604, -0.0387485, 0.0253398};
    const Values last{-0.200687, 2.74469, -0.200687, -0.262663, -0.221346, -0.200687};
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_NEAR(dx[i], first[i], 1e-6);
      EXPECT_NEAR(dx[18 + i], last[i], 5e-6);
    }
  }
}

TEST_P(GroupNormFaults, D021_GroupsAreKeptApartInBackward) {
  Tensor x = tensor({1, 2, 6, 10, 20, 60}, {1, 6}, DType::f64).set_requires_grad(true);
  group_norm(x, 2).backward(tensor({1, 0, 0, 0, 0, 0}, {1, 6}, DType::f64));
  expect_near(x.grad(), {0.176347, -0.220433, 0.0440862, 0, 0, 0}, 1e-6);
}

TEST_P(GroupNormFaults, D022_ScaleAndShiftPerChannel) {
  const Tensor x = tensor({1, 3, 5, 7, 2, 4, 6, 8}, {1, 4, 2});
  const Tensor y = group_norm(x, 2, tensor({1, 2, 3, 4}, {4}));
  expect_near(y, {-1.34164, -0.447213, 0.894426, 2.68328, -4.02492, -1.34164, 1.78885, 5.36656},
              1e-5);
  EXPECT_ERROR(group_norm(x, 2, tensor({1, 2}, {2})), ErrorCode::invalid_argument, "gamma");
}

TEST_P(GroupNormFaults, D024_UpstreamIsNotOverwritten) {
  Tensor x = tensor({2, 4, 9}, {1, 3}, DType::f64).set_requires_grad(true);
  Tensor beta = tensor({0, 0, 0}, {3}, DType::f64).set_requires_grad(true);
  const Tensor kept = tensor({3, -1, 2}, {1, 3}, DType::f64);
  group_norm(x, 1, {}, beta).backward(kept);
  const Values first = x.grad().to_vector<double>();
  expect_near(kept, {3, -1, 2}, 0);
  x.zero_grad();
  beta.zero_grad();
  group_norm(x, 1, {}, beta).backward(tensor({3, -1, 2}, {1, 3}, DType::f64));
  expect_near(x.grad(), first, 0);
  expect_near(beta.grad(), {3, -1, 2}, 0);
}

TEST_P(GroupNormFaults, D025_GradientsAddUp) {
  Tensor x = tensor({1, 2, 4}, {1, 1, 3}, DType::f64).set_requires_grad(true);
  Tensor gamma = tensor({1}, {1}, DType::f64).set_requires_grad(true);
  Tensor beta = tensor({0}, {1}, DType::f64).set_requires_grad(true);
  for (int i = 0; i < 3; ++i)
    group_norm(x, 1, gamma, beta).backward(tensor({1, 0, 2}, {1, 1, 3}, DType::f64));
  expect_near(x.grad(), {1.37447, -2.06173, 0.687252}, 1e-5);
  expect_near(gamma.grad(), {4.810687}, 1e-6);
  expect_near(beta.grad(), {9}, 0);
}

TEST_P(GroupNormFaults, D026_SampleCountsBesideTheBlock) {
  for (const int64_t n : {1023, 1025, 1031, 4097}) {
    Values values;
    for (int64_t i = 0; i < n; ++i) values.insert(values.end(), {-1, 0, 1});
    Tensor gamma = ones({3}).set_requires_grad(true), beta = ones({3}).set_requires_grad(true);
    group_norm(tensor(values, {n, 3}), 1, gamma, beta).backward(ones({n, 3}));
    const double count = static_cast<double>(n), want = 1.2247357 * count;
    expect_near(beta.grad(), {count, count, count}, 0);
    expect_near(gamma.grad(), {-want, 0, want}, 1e-5 * want);
  }
}

TEST_P(GroupNormFaults, D027_EveryMaskOfWantedGradients) {
  const Values values{1, 5, 2, 3, 8, 4, 0, 7}, upstream{1, 2, 3, 4, 5, 6, 7, 8};
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const auto run = [&](int mask) {
      Tensor x = tensor(values, {1, 4, 1, 2}).contiguous(format).clone();
      x.set_requires_grad(mask & 1);
      Tensor gamma = tensor({1, 2, 3, 4}, {4}).set_requires_grad(mask & 2);
      Tensor beta = tensor({0, 1, 0, 1}, {4}).set_requires_grad(mask & 4);
      const Tensor y = group_norm(x, 2, gamma, beta);
      if (mask == 0) {
        EXPECT_ERROR(y.backward(tensor(upstream, {1, 4, 1, 2})), ErrorCode::autograd);
      } else {
        y.backward(tensor(upstream, {1, 4, 1, 2}));
      }
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
}

TEST_P(GroupNormFaults, D028_LayersBeforeTheNormLearn) {
  const auto learns = [&](const auto& norm) {
    Tensor w = tensor({1, -2, 0.5, 3}, {2, 2}).set_requires_grad(true);
    Tensor gamma = tensor({1, 2}, {2}).set_requires_grad(true);
    const Tensor y = norm(matmul(tensor({1, 2, 3, -1}, {2, 2}), w), gamma);
    sum(y * y * tensor({1, 3}, {2})).backward();
    return std::pair(w.grad(), gamma.grad());
  };
  const auto [w, gamma] =
      learns([](const Tensor& x, const Tensor& gamma) { return group_norm(x, 1, gamma); });
  double largest = 0;
  for (const double value : w.to_vector<double>()) largest = std::max(largest, std::abs(value));
  EXPECT_GT(largest, 1e-6);
  EXPECT_GT(std::abs(gamma.to_vector<double>()[1]), 1e-3);
}

TEST_P(GroupNormFaults, D031_ParameterGradientsOfHalfPrecisionAreF32) {
  Values values;
  for (int i = 0; i < 4096; ++i) values.insert(values.end(), {-1, 1});
  Tensor gamma = ones({2}).set_requires_grad(true), beta = ones({2}).set_requires_grad(true);
  group_norm(tensor(values, {4096, 2}, DType::bf16), 1, gamma, beta, 0)
      .backward(ones({4096, 2}, DType::bf16));
  expect_near(beta.grad(), {4096, 4096}, 0);
  expect_near(gamma.grad(), {-4096, 4096}, 0);
}

TEST_P(GroupNormFaults, D101_D103_ManySamples) {
  for (const int64_t n : {65536, 65537, 131072}) {
    Values values;
    for (int64_t i = 0; i < n; ++i) values.insert(values.end(), {0, 2});
    Tensor x = tensor(values, {n, 2}).set_requires_grad(true);
    Tensor beta = ones({2}).set_requires_grad(true), gamma = ones({2}).set_requires_grad(true);
    const Tensor y = group_norm(x, 1, gamma, beta, 0);
    const Values got = y.to_vector<double>();
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], i % 2 ? 2 : 0) << i;
    y.backward(ones({n, 2}));
    const double count = static_cast<double>(n);
    expect_near(beta.grad(), {count, count}, 0);
    expect_near(gamma.grad(), {-count, count}, 0);
  }
}

TEST_P(GroupNormFaults, D102_ManyChannels) {
  const int64_t c = 70000;
  Values values(static_cast<size_t>(2 * c));
  for (size_t i = 0; i < values.size(); ++i) values[i] = i % 2 ? 2 : 0;
  for (const int64_t groups : {c, int64_t{1}}) {
    Tensor x = tensor(values, {1, c, 2}).set_requires_grad(true);
    Tensor gamma = ones({c}).set_requires_grad(true), beta = ones({c}).set_requires_grad(true);
    Tensor y = group_norm(x, groups, gamma, beta, 0);
    y.backward(tensor(values, {1, c, 2}));
    const Values got = y.to_vector<double>(), dgamma = gamma.grad().to_vector<double>();
    const Values dbeta = beta.grad().to_vector<double>();
    for (const size_t k : {0, 65535, 65536, 69999}) {
      EXPECT_EQ(got[2 * k], 0);
      EXPECT_EQ(got[2 * k + 1], 2);
      EXPECT_EQ(dgamma[k], 2);
      EXPECT_EQ(dbeta[k], 2);
    }
  }
}

// D104: beyond 2^31 elements; 15 GB of the device.
TEST(GroupNormCudaFaultsSlow, D104_BeyondTwoToThe31Elements) {
  GRADUS_SKIP_WITHOUT(kCuda);
  const int64_t plane = 16128 * 1200;
  const TensorOptions options{.dtype = DType::bf16, .device = kCuda};
  const Tensor pair = Tensor::from_vector<float>({1, -1}, {2}, options);
  const Tensor x = pair.reshape({1, 1, 1, 2}).expand({1, 128, plane / 2, 2}).clone();
  const Tensor flat = x.reshape({1, 128, 16128, 1200});
  const Tensor y = group_norm(flat, 32, {}, {}, 0).reshape({128, plane});
  for (const int64_t at : {int64_t{0}, plane / 2, plane - 2}) {
    const Values ends = y.slice(1, at, at + 2).to_vector<double>();
    for (size_t i = 0; i < ends.size(); ++i)
      ASSERT_EQ(ends[i], (at + static_cast<int64_t>(i)) % 2 ? -1 : 1) << i / 2 << " at " << at;
  }
}

}  // namespace
}  // namespace gradus
