// Faults that comparable software has had with local response normalization, by family.
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/ops/local_response_norm.h"
#include "nn/local_response_norm.h"
#include "tests/support/expect_error.h"
#include "tests/support/gpu.h"

namespace gradus {
namespace {

using Values = std::vector<double>;

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16};

// Of one rounding to the storage type, and the figures' own digits.
double tolerance_of(DType dtype) {
  return dtype == DType::f64   ? 1e-6
         : dtype == DType::f32 ? 1e-5
         : dtype == DType::f16 ? 1e-3
                               : 8e-3;
}

void expect_near(const Tensor& got, const Values& want) {
  const Values values = got.to_vector<double>();
  ASSERT_EQ(values.size(), want.size());
  const double relative = tolerance_of(got.dtype());
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(values[i], want[i], relative * std::abs(want[i]) + 1e-8) << "at " << i;
}

// The values along the channels in each layout that kernels tell apart: rows of channels, pixels
// that fill no vector, pixels that fill some, channels-last. All pixels hold the same.
struct Layout {
  const char* name;
  Shape shape;
  MemoryFormat format = MemoryFormat::contiguous;
};
std::vector<Layout> layouts(int64_t c) {
  return {{"rows", {2, c}},
          {"one pixel", {1, c, 1}},
          {"few pixels", {2, c, 3}},
          {"whole vectors", {1, c, 8, 8}},
          {"channels-last", {2, c, 2, 3}, MemoryFormat::channels_last}};
}

struct Options {
  int64_t size;
  double alpha, beta, k;
};

void expect_response(Device device, const Options& o, const Values& channels, const Values& y,
                     const Values& dy = {}, const Values& dx = {}) {
  const int64_t c = static_cast<int64_t>(channels.size());
  const auto spread = [&](const Values& values, const Shape& shape) {
    Values all(static_cast<size_t>(shape.numel()));
    const int64_t s = shape.numel() / (shape[0] * c);
    for (size_t i = 0; i < all.size(); ++i)
      all[i] = values[static_cast<size_t>(static_cast<int64_t>(i) / s % c)];
    return all;
  };
  for (const Layout& layout : layouts(c)) {
    for (const DType dtype : kDTypes) {
      SCOPED_TRACE(std::string(layout.name) + ", " + std::string(to_string(dtype)));
      const TensorOptions options{.dtype = dtype, .device = device, .format = layout.format};
      Tensor x = Tensor::from_vector(spread(channels, layout.shape), layout.shape, options);
      x.set_requires_grad(!dy.empty());
      const Tensor got = local_response_norm(x, o.size, o.alpha, o.beta, o.k);
      expect_near(got, spread(y, layout.shape));
      if (dy.empty()) continue;
      got.backward(Tensor::from_vector(spread(dy, layout.shape), layout.shape, options));
      expect_near(x.grad(), spread(dx, layout.shape));
    }
  }
}

void even_window(Device device) {  // c - 2 to c + 1: one more below
  expect_response(device, {4, 4, 1, 1}, {1, 2, 3, 4, 5},
                  {0.1666667, 0.1333333, 0.09677419, 0.07272727, 0.09803922});
}

void window_above_the_channels(Device device) {
  const Values x{1, 2, 3}, y{0.06666667, 0.1333333, 0.2}, dy{1, 0, 0};
  const Values dx{0.05777778, -0.01777778, -0.02666667};
  for (const int64_t size : {7, 15, 101})  // alpha/size = 1 in all
    expect_response(device, {size, static_cast<double>(size), 1, 1}, x, y, dy, dx);
  expect_response(device, {3, 3, 1, 1}, {2}, {0.4}, {1}, {-0.12});  // one channel: 1/5 - 2·4/25
}

void alpha_is_divided(Device device) {
  expect_response(device, {3, 0.3, 0.75, 2}, {1, 2, 3}, {0.5029734, 0.7987683, 1.2252813});
}

void edges_count_zeros(Device device) {
  expect_response(device, {3, 3, 1, 0}, {1, 1, 1, 1}, {0.5, 0.3333333, 0.3333333, 0.5});
}

void zero_denominator(Device device) {
  const Tensor x = Tensor::ones({1, 2}, {.dtype = DType::f32, .device = device});
  EXPECT_ERROR(local_response_norm(x, 1, 0, 0.2, 0), ErrorCode::invalid_argument,
               "local_response_norm: alpha and k must not both be 0: the denominator would be 0");
  EXPECT_ERROR(nn::LocalResponseNorm(1, 0, 0.2, 0), ErrorCode::invalid_argument,
               "local_response_norm: alpha and k must not be negative, nor both 0, got alpha 0 and "
               "k 0");
  for (const double beta : {0.5, 0.75, 1.0, 0.6, 2.0})
    expect_response(device, {3, 1, beta, 0}, {0, 0, 0}, {0, 0, 0}, {1, 2, 3}, {0, 0, 0});
  // A window of zeros beside one that is not.
  expect_response(device, {3, 3, 1, 0}, {0, 0, 0, 2}, {0, 0, 0, 0.5}, {1, 1, 1, 1},
                  {0, 0, 0.25, -0.25});
  const Tensor zeros = Tensor::zeros({1, 3, 2}, {.dtype = DType::f32, .device = device});
  for (const double value : local_response_norm_denom(zeros, 3, 1, 0).to_vector<double>())
    EXPECT_EQ(value, 0);
}

void overflowing_squares(Device device) {
  const Values x{-2e38, 1, 1e38, 1, 1, 1, 1};
  const Options options[] = {{3, 3, 1, 1}, {3, 3, 0.75, 1}, {3, 3, 0.5, 1}, {3, 3, 0.6, 1}};
  for (const Options& o : options) {
    for (const Layout& layout : layouts(7)) {
      SCOPED_TRACE(layout.name);
      const int64_t s = layout.shape.numel() / (layout.shape[0] * 7);
      Values all(static_cast<size_t>(layout.shape.numel()));
      for (size_t i = 0; i < all.size(); ++i) all[i] = x[i / static_cast<size_t>(s) % 7];
      Tensor in = Tensor::from_vector(
          all, layout.shape, {.dtype = DType::f32, .device = device, .format = layout.format});
      in.set_requires_grad(true);
      const Tensor y = local_response_norm(in, o.size, o.alpha, o.beta, o.k);
      y.backward(Tensor::ones(layout.shape, y.options()));
      const Values got = y.to_vector<double>(), dx = in.grad().to_vector<double>();
      for (size_t i = 0; i < got.size(); ++i) {
        const size_t c = i / static_cast<size_t>(s) % 7;
        ASSERT_TRUE(std::isfinite(got[i]) && std::isfinite(dx[i])) << c;
        // 1 + three squares, or two at the edge; where the sum overflows the power is 0.
        const double want = c < 4 ? 0 : std::pow(c == 6 ? 3 : 4, -o.beta);
        EXPECT_NEAR(got[i], want, c < 4 ? 1.1e-38 : 1e-6) << c;
      }
    }
  }
}

// What overflows does not count without alpha: y = x·k^-beta.
void overflow_without_alpha(Device device) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    const double huge = dtype == DType::f64 ? 0x1p520 : 0x1p66;
    const Tensor x =
        Tensor::from_vector(Values{1, huge, -1, 2}, {1, 4, 1}, {.dtype = dtype, .device = device});
    const Tensor leaf = x.detach().set_requires_grad(true);
    const Tensor y = local_response_norm(leaf, 3, 0, 0.5, 4);
    EXPECT_EQ(y.to_vector<double>(), (Values{0.5, huge / 2, -0.5, 1})) << to_string(dtype);
    y.backward(Tensor::ones(y.shape(), y.options()));
    EXPECT_EQ(leaf.grad().to_vector<double>(), Values(4, 0.5)) << to_string(dtype);
    EXPECT_EQ(local_response_norm_denom(x, 3, 0, 4).to_vector<double>(), Values(4, 4));
    const Tensor zeros = local_response_norm(Tensor::zeros({1, 2}, x.options()), 3, 0, 0.75, 1e-60);
    EXPECT_EQ(zeros.to_vector<double>(), Values(2, 0)) << to_string(dtype);
  }
}

TEST(LocalResponseNormFaults, D032_EvenWindowReachesFurtherDown) { even_window(kCpu); }
TEST(LocalResponseNormFaults, D033_WindowAboveTheChannels) { window_above_the_channels(kCpu); }
TEST(LocalResponseNormFaults, D034_AlphaIsDividedBySize) { alpha_is_divided(kCpu); }
TEST(LocalResponseNormFaults, D035_ChannelsOutsideAreZeros) { edges_count_zeros(kCpu); }
TEST(LocalResponseNormFaults, D036_ZeroDenominatorGivesZero) { zero_denominator(kCpu); }
TEST(LocalResponseNormFaults, D037_OverflowStaysInItsWindows) { overflowing_squares(kCpu); }
TEST(LocalResponseNormFaults, D037_OverflowWithoutAlpha) { overflow_without_alpha(kCpu); }

#define GRADUS_CUDA_TWIN(name, test)        \
  TEST(LocalResponseNormCudaFaults, name) { \
    GRADUS_SKIP_WITHOUT(kCuda);             \
    test(kCuda);                            \
  }
GRADUS_CUDA_TWIN(D032_EvenWindowReachesFurtherDown, even_window)
GRADUS_CUDA_TWIN(D033_WindowAboveTheChannels, window_above_the_channels)
GRADUS_CUDA_TWIN(D034_AlphaIsDividedBySize, alpha_is_divided)
GRADUS_CUDA_TWIN(D035_ChannelsOutsideAreZeros, edges_count_zeros)
GRADUS_CUDA_TWIN(D036_ZeroDenominatorGivesZero, zero_denominator)
GRADUS_CUDA_TWIN(D037_OverflowStaysInItsWindows, overflowing_squares)
GRADUS_CUDA_TWIN(D037_OverflowWithoutAlpha, overflow_without_alpha)

// Beyond 2^31 elements; 30 GB of the device. Windows of `size` channels of 2 give denom = 1 + 3, so
// y = 2/4, t = 1/4·2/4 and dx = 1/4 - 2·0.75/size·2·size·t.
TEST(LocalResponseNormCudaFaultsSlow, D104_BeyondTwoToThe31Elements) {
  GRADUS_SKIP_WITHOUT(kCuda);
  const Shape shape{1, 128, 16128, 1200};
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    for (const int64_t size : {3, 4}) {  // kernels of its own, and those for any size
      SCOPED_TRACE(size);
      Tensor x =
          Tensor::full(shape, 2.0, {.dtype = DType::bf16, .device = kCuda, .format = format});
      x.set_requires_grad(true);
      const Tensor y = local_response_norm(x, size, 0.75, 1, 1);
      y.backward(Tensor::full({}, 1.0, {.dtype = DType::bf16, .device = kCuda}).expand(shape));
      const auto expect_all = [&](const Tensor& result, float want) {
        for (const int64_t channel : {8, 64, 119}) {
          for (const int64_t row : {0, 8064, 16127}) {
            const Tensor pixels =
                result.slice(1, channel, channel + 1).slice(2, row, row + 1).contiguous();
            for (const float value : pixels.to_vector<float>()) ASSERT_EQ(value, want);
          }
        }
      };
      expect_all(y.detach(), 0.5f);
      expect_all(x.grad(), -0.125f);
    }
  }
}

}  // namespace
}  // namespace gradus
