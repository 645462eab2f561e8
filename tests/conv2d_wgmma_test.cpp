// conv2d with channels enough for Hopper's products, on the GPU against f64 on the same GPU.
#include <cmath>

#include "core/generator.h"
#include "tests/support/conv_results.h"
#include "tests/support/op_modes.h"

namespace gradus {
namespace {

const ConvShapes kProblems[] = {
    {{5, 64, 16, 15}, {64, 64, 3, 3}, {.padding = 1}},
    {{7, 32, 14, 14}, {64, 32, 3, 3}, {.padding = 1}},
    {{4, 32, 28, 29}, {32, 32, 5, 3}, {.padding = {2, 1}}},
    {{3, 64, 30, 33}, {40, 64, 2, 3}, {.padding = {0, 2}, .dilation = {3, 2}}},
    {{4, 128, 17, 19}, {128, 128, 3, 3}, {.padding = 1}},
    {{8, 192, 13, 13}, {136, 192, 3, 3}, {.padding = 1}},
    {{6, 128, 33, 31}, {192, 128, 3, 3}, {.stride = 2, .padding = 1}},
    {{2, 256, 32, 32}, {72, 256, 1, 1}},
    {{3, 64, 40, 43}, {200, 64, 5, 4}, {.stride = {2, 1}, .padding = {2, 0}, .dilation = {1, 2}}},
    {{3, 128, 20, 41}, {64, 128, 1, 7}, {.stride = {1, 2}, .padding = {0, 3}}},
    {{2, 64, 40, 38}, {64, 64, 3, 3}, {.padding = {3, 5}, .dilation = 3}},
    {{9, 64, 14, 14}, {72, 64, 3, 3}, {.padding = 1}},
    {{3, 128, 31, 31}, {68, 128, 3, 3}, {.padding = {0, 2}}},
    {{2, 192, 24, 23}, {64, 192, 3, 3}, {.padding = 1}},
    {{5, 256, 14, 15}, {136, 256, 3, 3}, {.padding = 1}},
    {{20, 128, 8, 8}, {200, 128, 3, 3}, {.padding = 1}},
    {{3, 128, 18, 30}, {128, 128, 3, 3}, {.padding = 0}},
    {{10, 64, 28, 4}, {64, 64, 3, 1}, {.padding = {1, 0}}},
    {{12, 64, 20, 6}, {48, 64, 3, 2}},
};

class Conv2dWgmmaCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU";
  }
};

void expect_exact(const ConvShapes& problem, MemoryFormat format, int64_t offset = 0,
                  int64_t w_offset = 0) {
  const std::vector<Tensor> wanted = conv_results(problem, DType::f64, format);
  for (const ConvMode& mode : kConvModes) {
    SCOPED_TRACE(concat(problem.x, " ", problem.w, " ", mode.name, " ", format));
    const MatmulPrecisionGuard precision(mode.precision);
    expect_exactly(conv_results(problem, mode.dtype, format, offset, w_offset), wanted);
  }
}

class Conv2dWgmmaProblemsCuda : public Conv2dWgmmaCuda,
                                public testing::WithParamInterface<ConvShapes> {};
std::string name_of(const testing::TestParamInfo<ConvShapes>& info) {
  const Shape &x = info.param.x, &w = info.param.w;
  return concat(x[0], "x", x[1], "x", x[2], "x", x[3], "_to_", w[0], "_by_", w[2], "x", w[3]);
}
INSTANTIATE_TEST_SUITE_P(Shapes, Conv2dWgmmaProblemsCuda, testing::ValuesIn(kProblems), name_of);

TEST_P(Conv2dWgmmaProblemsCuda, AgreeExactlyWithF64) {
  for (const auto format : {MemoryFormat::channels_last, MemoryFormat::contiguous})
    expect_exact(GetParam(), format);
}

// What the fast paths cannot read in place is copied, from channels-last to channels-last as well.
TEST_F(Conv2dWgmmaCuda, UnalignedViewsAgreeExactlyWithF64) {
  const ConvShapes problems[] = {{{2, 3, 15, 18}, {64, 3, 3, 3}, {.padding = 1}},
                                 {{2, 32, 19, 28}, {32, 32, 3, 3}, {.padding = 1}},
                                 {{5, 64, 16, 15}, {64, 64, 3, 3}, {.padding = 1}},
                                 {{4, 128, 17, 19}, {128, 128, 3, 3}, {.stride = 2, .padding = 1}},
                                 {{2, 40, 13, 18}, {40, 1, 3, 3}, {.padding = 1, .groups = 40}},
                                 {{2, 64, 9, 32}, {64, 1, 3, 3}, {.padding = 1, .groups = 64}},
                                 {{2, 32, 12, 13}, {16, 16, 3, 3}, {.padding = 1, .groups = 2}}};
  for (const ConvShapes& problem : problems) {
    for (const auto format : {MemoryFormat::channels_last, MemoryFormat::contiguous}) {
      expect_exact(problem, format, 1);
      expect_exact(problem, format, 0, 1);
    }
  }
}

// A block then has several tiles, and its warpgroups take turns; of TF32 two slices of channels in
// many stages, of rows of 32 in three and of rows of 30 in two.
TEST_F(Conv2dWgmmaCuda, AgreesWithF64WhereTilesAreManyMoreThanBlocks) {
  expect_exact({{450, 64, 14, 14}, {64, 64, 3, 3}, {.padding = 1}}, MemoryFormat::channels_last);
  expect_exact({{60, 64, 32, 32}, {32, 64, 3, 3}, {.padding = 1}}, MemoryFormat::channels_last);
  expect_exact({{390, 64, 7, 30}, {64, 64, 3, 3}, {.padding = 1}}, MemoryFormat::channels_last);
  expect_exact({{390, 32, 7, 30}, {48, 32, 3, 3}, {.padding = 1}}, MemoryFormat::channels_last);
}

// A block has an image, whose input its threads load in two turns.
TEST_F(Conv2dWgmmaCuda, WholeImagesOfOneChannelAgreeExactlyWithF64) {
  for (const auto format : {MemoryFormat::channels_last, MemoryFormat::contiguous})
    expect_exact({{530, 1, 30, 33}, {40, 1, 3, 3}, {.padding = 1}}, format);
}

// Blocks of 32 and of 16 columns, with columns and channels that do not exist, with one row of an
// image and with several tiles of them.
TEST_F(Conv2dWgmmaCuda, DepthwiseAgreesExactlyWithF64) {
  const ConvShapes problems[] = {
      {{2, 128, 32, 32}, {128, 1, 3, 3}, {.padding = 1, .groups = 128}},
      {{3, 120, 19, 29}, {120, 1, 3, 3}, {.padding = 1, .groups = 120}},
      {{2, 64, 37, 46}, {64, 1, 3, 3}, {.padding = 0, .groups = 64}},
      {{2, 56, 5, 13}, {56, 1, 3, 3}, {.padding = {0, 2}, .groups = 56}},
      {{1, 248, 3, 95}, {248, 1, 3, 3}, {.padding = {0, 1}, .groups = 248}},
      {{700, 64, 11, 16}, {64, 1, 3, 3}, {.padding = {3, 1}, .groups = 64}},
  };
  for (const ConvShapes& problem : problems) {
    for (const auto format : {MemoryFormat::channels_last, MemoryFormat::contiguous})
      expect_exact(problem, format);
  }
}

// Products on tensor cores have the eight channels of a vector at a time.
TEST_F(Conv2dWgmmaCuda, DepthwiseKeepsWhatIsNotOrdinaryInItsChannel) {
  const int64_t n = 2, channels = 64, side = 30;
  const Conv2dOptions options{.padding = 1, .groups = channels};
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    SCOPED_TRACE(concat(dtype));
    const TensorOptions on{.dtype = dtype, .device = kCuda};
    std::vector<float> values(static_cast<size_t>(n * channels * side * side), 0.5f);
    const auto at = [&](int64_t image, int64_t channel, int64_t row, int64_t column) {
      return static_cast<size_t>(((image * channels + channel) * side + row) * side + column);
    };
    values[at(0, 3, 0, 0)] = INFINITY;
    values[at(0, 9, 29, 15)] = -INFINITY;
    values[at(1, 62, 17, 29)] = NAN;
    const Tensor w = Tensor::full({channels, 1, 3, 3}, 0.25, on);
    const auto results = [&](const std::vector<float>& x) {
      const auto last = MemoryFormat::channels_last;
      return conv2d(Tensor::from_vector(x, {n, channels, side, side}, on).contiguous(last), w, {},
                    options)
          .to_vector<float>();
    };
    const std::vector<float> got = results(values);
    for (float& value : values) value = 0.5f;
    const std::vector<float> ordinary = results(values);
    const auto near = [](int64_t a, int64_t b) { return a - b >= -1 && a - b <= 1; };
    for (int64_t i = 0; i < static_cast<int64_t>(got.size()); ++i) {
      const int64_t column = i % side, row = i / side % side;
      const int64_t channel = i / (side * side) % channels, image = i / (side * side) / channels;
      const auto meets = [&](int64_t of, int64_t c, int64_t r, int64_t s) {
        return image == of && channel == c && near(row, r) && near(column, s);
      };
      const float value = got[static_cast<size_t>(i)];
      if (meets(0, 3, 0, 0)) {
        ASSERT_EQ(value, INFINITY) << i;
      } else if (meets(0, 9, 29, 15)) {
        ASSERT_EQ(value, -INFINITY) << i;
      } else if (meets(1, 62, 17, 29)) {
        ASSERT_TRUE(std::isnan(value)) << i;
      } else {
        ASSERT_EQ(value, ordinary[static_cast<size_t>(i)]) << i;
      }
    }
  }
}

// Root mean square errors of every 97th result, of the device and of plain f32 multiply-adds.
struct Errors {
  double device = 0, plain = 0;
};
template <class PlainSum>
Errors errors_of(const std::vector<double>& got, const std::vector<double>& exact,
                 const PlainSum& plain_sum) {
  Errors errors;
  int count = 0;
  for (size_t at = 0; at < got.size(); at += 97, ++count) {
    errors.device += std::pow(got[at] - exact[at], 2);
    errors.plain += std::pow(plain_sum(static_cast<int64_t>(at)) - exact[at], 2);
  }
  return {std::sqrt(errors.device / count), std::sqrt(errors.plain / count)};
}

Errors strict_errors(int64_t c, int64_t k, int64_t kernel, double low) {
  const int64_t side = 32, extent = side + kernel - 1;
  const TensorOptions f32{.device = kCuda};
  const Tensor x = rand({1, c, extent, extent}, f32, nullptr, low, 1.0);
  const Tensor w = rand({k, c, kernel, kernel}, f32, nullptr, low, 1.0);
  const MatmulPrecisionGuard precision(MatmulPrecision::strict);
  const auto y = conv2d(x, w).to_vector<double>();
  const auto exact = conv2d(x.to(DType::f64), w.to(DType::f64)).to_vector<double>();
  const auto xs = x.to_vector<float>(), ws = w.to_vector<float>();
  return errors_of(y, exact, [&](int64_t out) {
    const int64_t channel = out / (side * side), i = out / side % side, j = out % side;
    float sum = 0;
    for (int64_t r = 0; r < kernel; ++r) {
      for (int64_t s = 0; s < kernel; ++s) {
        for (int64_t n = 0; n < c; ++n) {
          sum =
              std::fma(xs[static_cast<size_t>((n * extent + i + r) * extent + j + s)],
                       ws[static_cast<size_t>(((channel * c + n) * kernel + r) * kernel + s)], sum);
        }
      }
    }
    return sum;
  });
}

TEST_F(Conv2dWgmmaCuda, StrictF32IsAtMostTwiceAsFarOffAsPlainMultiplyAdds) {
  struct Sum {
    int64_t c, k, kernel;
  };
  // The last two over halo tiles.
  for (const auto& [c, k, kernel] :
       {Sum{1, 64, 3}, {32, 64, 3}, {128, 64, 3}, {4096, 64, 4}, {32, 32, 3}, {64, 32, 3}}) {
    for (const double low : {-1.0, 0.0}) {
      const Errors errors = strict_errors(c, k, kernel, low);
      EXPECT_LE(errors.device, 2 * errors.plain) << c * kernel * kernel << " from " << low;
      EXPECT_GT(errors.plain, 0);
    }
  }
}

// The same of every 97th weight's gradient, sums over the pixels of 3 images.
Errors strict_weight_errors(int64_t c, int64_t k, double low) {
  const int64_t n = 3, side = 32, kernel = 3, extent = side + kernel - 1;
  const TensorOptions f32{.device = kCuda};
  const Tensor x = rand({n, c, extent, extent}, f32, nullptr, low, 1.0);
  const Tensor dy = rand({n, k, side, side}, f32, nullptr, low, 1.0);
  const auto dw = [&](DType dtype) {
    const MatmulPrecisionGuard precision(MatmulPrecision::strict);
    const Tensor w = Tensor::zeros({k, c, kernel, kernel}, {.dtype = dtype, .device = kCuda})
                         .set_requires_grad(true);
    conv2d(x.to(dtype), w).backward(dy.to(dtype));
    return w.grad().to_vector<double>();
  };
  const auto got = dw(DType::f32), exact = dw(DType::f64);
  const auto xs = x.to_vector<float>(), ys = dy.to_vector<float>();
  return errors_of(got, exact, [&](int64_t out) {
    const int64_t s = out % kernel, r = out / kernel % kernel, in = out / kernel / kernel % c;
    const int64_t channel = out / kernel / kernel / c;
    float sum = 0;
    for (int64_t m = 0; m < n * side * side; ++m) {
      const int64_t image = m / side / side, i = m / side % side, j = m % side;
      const int64_t from = ((image * c + in) * extent + i + r) * extent + j + s;
      const int64_t to = ((image * k + channel) * side + i) * side + j;
      sum = std::fma(xs[static_cast<size_t>(from)], ys[static_cast<size_t>(to)], sum);
    }
    return sum;
  });
}

TEST_F(Conv2dWgmmaCuda, StrictF32WeightsAreAtMostTwiceAsFarOffAsPlainMultiplyAdds) {
  for (const auto& [c, k] : {std::pair{32, 32}, {64, 64}, {128, 128}}) {
    for (const double low : {-1.0, 0.0}) {
      const Errors errors = strict_weight_errors(c, k, low);
      EXPECT_LE(errors.device, 2 * errors.plain) << c << " -> " << k << " from " << low;
      EXPECT_GT(errors.plain, 0);
    }
  }
}

// The same of every 97th element of dx, all of which read 3 x 3 pixels of dy.
Errors strict_input_errors(int64_t c, int64_t k, double low) {
  const int64_t side = 32, kernel = 3, extent = side + kernel - 1;
  const TensorOptions f32{.device = kCuda};
  const Tensor dy = rand({1, k, extent, extent}, f32, nullptr, low, 1.0);
  const Tensor w = rand({k, c, kernel, kernel}, f32, nullptr, low, 1.0);
  const auto dx = [&](DType dtype) {
    const MatmulPrecisionGuard precision(MatmulPrecision::strict);
    const Tensor x = Tensor::zeros({1, c, side, side}, {.dtype = dtype, .device = kCuda})
                         .set_requires_grad(true);
    conv2d(x, w.to(dtype), {}, {.padding = 2}).backward(dy.to(dtype));
    return x.grad().to_vector<double>();
  };
  const auto got = dx(DType::f32), exact = dx(DType::f64);
  const auto ys = dy.to_vector<float>(), ws = w.to_vector<float>();
  return errors_of(got, exact, [&](int64_t out) {
    const int64_t in = out / (side * side), u = out / side % side, v = out % side;
    float sum = 0;
    for (int64_t r = 0; r < kernel; ++r) {
      for (int64_t s = 0; s < kernel; ++s) {
        for (int64_t channel = 0; channel < k; ++channel) {
          const int64_t from = (channel * extent + u + 2 - r) * extent + v + 2 - s;
          const int64_t weight = ((channel * c + in) * kernel + r) * kernel + s;
          sum = std::fma(ys[static_cast<size_t>(from)], ws[static_cast<size_t>(weight)], sum);
        }
      }
    }
    return sum;
  });
}

TEST_F(Conv2dWgmmaCuda, StrictF32InputsAreAtMostTwiceAsFarOffAsPlainMultiplyAdds) {
  for (const auto& [c, k] : {std::pair{1, 32}, {3, 64}, {32, 32}, {32, 64}, {64, 64}}) {
    for (const double low : {-1.0, 0.0}) {
      const Errors errors = strict_input_errors(c, k, low);
      EXPECT_LE(errors.device, 2 * errors.plain) << c << " -> " << k << " from " << low;
      EXPECT_GT(errors.plain, 0);
    }
  }
}

// One value in a field of zeros, times weights of 1, 1/3 and 0.
void expect_keeps_what_is_not_ordinary(int64_t c, int64_t k, int64_t kernel) {
  SCOPED_TRACE(concat(c, " -> ", k, ", ", kernel, " x ", kernel));
  const float infinity = INFINITY, largest = 3.40282347e38f;
  const int64_t side = 32;
  const auto first_pixel = [&](float value, float weight) {
    const auto depth = static_cast<size_t>(c * kernel * kernel);
    std::vector<float> x(static_cast<size_t>(c * side * side)),
        w(static_cast<size_t>(k) * depth, 0.5f);
    x[0] = value;
    for (size_t row = 0; row < w.size(); row += depth) w[row] = weight;
    const TensorOptions options{.device = kCuda};
    const MatmulPrecisionGuard precision(MatmulPrecision::strict);
    const Tensor y = conv2d(Tensor::from_vector(x, {1, c, side, side}, options),
                            Tensor::from_vector(w, {k, c, kernel, kernel}, options));
    return y.to_vector<float>()[0];
  };
  EXPECT_EQ(first_pixel(infinity, 1), infinity);
  EXPECT_EQ(first_pixel(-infinity, 1.0f / 3), -infinity);
  EXPECT_EQ(first_pixel(1, -infinity), -infinity);
  EXPECT_EQ(first_pixel(-infinity, -infinity), infinity);
  EXPECT_TRUE(std::isnan(first_pixel(infinity, 0)));
  EXPECT_TRUE(std::isnan(first_pixel(NAN, 1)));
  EXPECT_TRUE(std::isnan(first_pixel(1, NAN)));
  EXPECT_FLOAT_EQ(first_pixel(largest, 1), largest);
  EXPECT_FLOAT_EQ(first_pixel(-largest, 0.5f), -largest / 2);
  EXPECT_FLOAT_EQ(first_pixel(1e-30f, 1.0f / 3), 1e-30f / 3);
  // Subnormal parts keep the last place of TF32, 2^-136.
  EXPECT_NEAR(first_pixel(1e-39f, 1), 1e-39, std::ldexp(1.0, -136));
}

TEST_F(Conv2dWgmmaCuda, StrictF32KeepsWhatIsNotOrdinary) {
  expect_keeps_what_is_not_ordinary(128, 64, 1);
  expect_keeps_what_is_not_ordinary(32, 32, 3);  // over halo tiles
}

}  // namespace
}  // namespace gradus
