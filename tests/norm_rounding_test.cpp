// What rounding must not do in norms.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "autograd/ops/batch_norm.h"
#include "autograd/ops/group_norm.h"
#include "autograd/ops/layer_norm.h"
#include "autograd/ops/rms_norm.h"
#include "tests/support/each_device.h"

namespace gradus {
namespace {

constexpr int64_t kChannels = 4, kPixels = 32;
constexpr float kCentre = 1'234'567;

Tensor far_from_zero(int64_t samples, MemoryFormat format) {
  const Shape shape{samples, kChannels, kPixels, kPixels};
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = kCentre + (i % 2 == 0 ? 1 : -1);
  return Tensor::from_vector(values, shape, {.format = format});
}

void expect_mean_and_variance(const NormStatistics& saved, const std::string& what) {
  for (const double mean : saved.mean.to_vector<double>()) EXPECT_EQ(mean, kCentre) << what;
  for (const double rstd : saved.rstd.to_vector<double>()) EXPECT_NEAR(rstd, 1, 1e-5) << what;
}

// The first of two passes rounds the mean; the second corrects what that does to mean and variance.
// Sets of 4,096 values, of which f32 sums are rounded by up to 128.
TEST(NormRounding, OfTheMeanIsCorrected) {
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor one = far_from_zero(1, format), four = far_from_zero(4, format);
    NormStatistics saved;
    batch_norm(four, {}, {}, {}, {}, &saved);
    expect_mean_and_variance(saved, concat("batch_norm, ", format));
    group_norm(one, 1, {}, {}, 1e-5, &saved);
    expect_mean_and_variance(saved, concat("group_norm, ", format));
    layer_norm(one, {kChannels, kPixels, kPixels}, {}, {}, 1e-5, &saved);
    expect_mean_and_variance(saved, concat("layer_norm, ", format));
  }
}

class NormOfOne : public test::EachDevice {};
GRADUS_ON_EACH_DEVICE(NormOfOne);

// d - m1 is 0 in a set of one element, though the product d = dy·gamma is not exact.
TEST_P(NormOfOne, HasNoGradient) {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    const auto leaf = [](const std::vector<double>& values, const Shape& shape, DType type) {
      return Tensor::from_vector(values, shape, {.dtype = type, .device = GetParam()})
          .set_requires_grad(true);
    };
    const Tensor gamma = leaf({0.3}, {1}, acc_dtype(dtype));
    const Tensor dy = leaf({0.7, 1.3, -0.9}, {3, 1}, dtype).detach();
    const Tensor row = leaf({0.1, 0.7, 123.4}, {3, 1}, dtype);
    const Tensor group = leaf({0.1, 0.7, 123.4}, {3, 1}, dtype);
    layer_norm(row, {1}, gamma).backward(dy);
    group_norm(group, 1, gamma).backward(dy);
    EXPECT_EQ(row.grad().to_vector<double>(), std::vector<double>(3, 0.0)) << to_string(dtype);
    EXPECT_EQ(group.grad().to_vector<double>(), std::vector<double>(3, 0.0)) << to_string(dtype);
    EXPECT_EQ(gamma.grad().item<double>(), 0) << to_string(dtype);
  }
}

// Rounding to 16 bits adds to the bits: of a NaN with all of them set it would make 0.
TEST(NormRounding, ANaNOfAnyBitsStaysNaN) {
  for (const uint32_t bits : {0x7FFFFFFFu, 0xFFFFFFFFu, 0x7FC00000u}) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      const std::vector<float> gamma(41, std::bit_cast<float>(bits));
      const Tensor x = Tensor::ones({2, 41}, {.dtype = dtype});
      const Tensor y = layer_norm(x, {41}, Tensor::from_vector(gamma, {41}));
      for (const double value : y.to_vector<double>()) ASSERT_TRUE(std::isnan(value)) << bits;
    }
  }
}

class NormEps : public test::EachDevice {};
GRADUS_ON_EACH_DEVICE(NormEps);

// An eps that f32 rounds to 0 is above it all the same: what has no variance is 0.
TEST_P(NormEps, BelowTheSmallestNumber) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const double kEps = dtype == DType::f64 ? 1e-310 : 1e-80;
    const TensorOptions options{.dtype = dtype, .device = GetParam()};
    const Tensor ones = Tensor::ones({4, 8, 4, 4}, options);
    const Tensor zeros = Tensor::zeros({4, 8, 4, 4}, options);
    const auto want = zeros.to_vector<double>();
    const auto expect = [&](const Tensor& y, const char* norm) {
      EXPECT_EQ(y.to_vector<double>(), want) << concat(norm, " ", dtype);
    };
    expect(batch_norm(ones, {}, {}, {}, {.training = true, .eps = kEps}), "batch_norm");
    expect(group_norm(ones, 2, {}, {}, kEps), "group_norm");
    expect(layer_norm(ones, {4, 4}, {}, {}, kEps), "layer_norm");
    expect(rms_norm(zeros, {4, 4}, {}, kEps), "rms_norm");
  }
}

}  // namespace
}  // namespace gradus
