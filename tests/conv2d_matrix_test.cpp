// conv2d over kernels x strides x paddings x dilations x groups, forward and every gradient,
// exactly.
//
// All values are multiples of 1/8 of at most 1, which TF32, f16 and bf16 hold: every product and
// every sum is then exact in f32 in whatever order it is added, and what is left is the rounding to
// the storage type. A tap, a border or a parity that is off by one cannot hide in a tolerance.
#include <cmath>

#include "autograd/ops/conv2d.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/conv_modes.h"
#include "tests/support/gpu.h"
#include "tests/support/op_modes.h"
#include "tests/support/reference_conv.h"

namespace gradus {
namespace {

ref::Array draw(const Shape& shape, uint32_t seed) {
  return {shape, draw_eighths(shape.numel(), seed)};
}

// x [n, c, h, w], w [k, c / groups, r, s].
struct Problem {
  Shape x, w;
  Conv2dOptions options;
  std::string text;
};

struct Wanted {
  ref::Array x, w, bias, dy, y;
  ref::Conv2dGradients gradients;

  explicit Wanted(const Problem& problem)
      : x(draw(problem.x, 1)), w(draw(problem.w, 2)), bias(draw({problem.w[0]}, 3)) {
    compute(problem);
  }

  void compute(const Problem& problem) {  // again where x has changed
    const ref::Conv2dOptions options{.stride_h = problem.options.stride[0],
                                     .stride_w = problem.options.stride[1],
                                     .padding_h = problem.options.padding[0],
                                     .padding_w = problem.options.padding[1],
                                     .dilation_h = problem.options.dilation[0],
                                     .dilation_w = problem.options.dilation[1],
                                     .groups = problem.options.groups};
    y = ref::conv2d(x, w, bias, options);
    dy = draw(y.shape, 4);
    gradients = ref::conv2d_backward(x, w, dy, options);
  }
};

void check(const Problem& problem, const Wanted& wanted, const ConvMode& mode, Device device,
           MemoryFormat format, MemoryFormat dy_format) {
  SCOPED_TRACE(concat(problem.text, " ", mode.name, " ", format, ", dy ", dy_format));
  const MatmulPrecisionGuard precision(mode.precision);
  const auto tensor = [&](const ref::Array& values, DType dtype, MemoryFormat layout) {
    return Tensor::from_vector(values.data, values.shape,
                               {.dtype = dtype, .device = device, .format = layout});
  };
  const auto flat = MemoryFormat::contiguous;
  const Tensor x = tensor(wanted.x, mode.dtype, format).set_requires_grad(true);
  const Tensor w = tensor(wanted.w, mode.dtype, flat).set_requires_grad(true);
  const Tensor bias = tensor(wanted.bias, acc_dtype(mode.dtype), flat).set_requires_grad(true);
  const Tensor y = conv2d(x, w, bias, problem.options);
  y.backward(tensor(wanted.dy, mode.dtype, dy_format));
  const auto expect = [&](const Tensor& got, const ref::Array& want, const char* name) {
    ASSERT_EQ(got.shape(), want.shape) << name;
    std::vector<double> rounded = want.data;
    for (double& value : rounded) value = round_to(value, got.dtype());
    EXPECT_TRUE(agrees(got.to_vector<double>(), rounded, got.dtype(), Tolerance{})) << name;
  };
  expect(y, wanted.y, "y");
  expect(x.grad(), wanted.gradients.dx, "dx");
  expect(w.grad(), wanted.gradients.dw, "dw");
  expect(bias.grad(), wanted.gradients.db, "dbias");
}

void check_modes_of(const Problem& problem, const Wanted& wanted, Device device,
                    MemoryFormat format, MemoryFormat dy_format) {
  for (const ConvMode& mode : kConvModes) {
    if (device == kCpu && mode.precision == MatmulPrecision::tf32) continue;
    check(problem, wanted, mode, device, format, dy_format);
  }
  check(problem, wanted, {"f64", DType::f64}, device, format, dy_format);
}

using Kernel = std::pair<int64_t, int64_t>;

constexpr Kernel kKernels[] = {{1, 1}, {3, 3}, {5, 5}, {7, 7}, {1, 7}};

std::string name_of(const Kernel& kernel, Device device) {
  return concat("k", kernel.first, "x", kernel.second, device == kCpu ? "_Cpu" : "_Cuda");
}

using KernelByStride = std::tuple<int64_t, Kernel, Device>;
class Conv2dMatrixByStride : public testing::TestWithParam<KernelByStride> {};

std::string name_by_stride(const testing::TestParamInfo<KernelByStride>& info) {
  const auto& [stride, kernel, device] = info.param;
  return concat("stride", stride, "_", name_of(kernel, device));
}
INSTANTIATE_TEST_SUITE_P(Kernels, Conv2dMatrixByStride,
                         testing::Combine(testing::Values(1, 2, 3), testing::ValuesIn(kKernels),
                                          testing::Values(kCpu, kCuda)),
                         name_by_stride);

// Channel counts that the matrix products of 16 bytes take as they are; h and w differ.
TEST_P(Conv2dMatrixByStride, OfManyChannels) {
  const auto& [stride, kernel, device] = GetParam();
  GRADUS_SKIP_WITHOUT(device);
  const auto [r, s] = kernel;
  int64_t turn = 0;
  for (int64_t padding = 0; padding <= 3; ++padding) {
    for (int64_t dilation = 1; dilation <= 3; ++dilation) {
      for (const int64_t groups : {1, 2, 24}) {
        const int64_t c = groups == 24 ? 24 : 16 * groups, k = groups == 2 ? 16 : 24;
        const int64_t least_h = dilation * (r - 1) + 1 - 2 * padding;
        const int64_t least_w = dilation * (s - 1) + 1 - 2 * padding;
        const int64_t h = (std::max<int64_t>(least_h, 1) + 3) | 1;
        const int64_t w = (std::max<int64_t>(least_w, 1) + 5) | 1;
        const Problem problem{
            {1, c, h, w},
            {k, c / groups, r, s},
            {.stride = stride, .padding = padding, .dilation = dilation, .groups = groups},
            concat("padding ", padding, " dilation ", dilation, " groups ", groups)};
        const auto format =
            ++turn % 4 == 0 ? MemoryFormat::contiguous : MemoryFormat::channels_last;
        check_modes_of(problem, Wanted(problem), device, format, format);
      }
    }
  }
}

// In dx each phase of the stride has taps of its own, here one or none, and rows of its own length.
TEST(Conv2dStrides, OfTheAxesMayDiffer) {
  for (const auto& [r, s] : {Kernel{1, 1}, {2, 2}, {1, 3}, {3, 1}}) {
    for (const auto& [down, right] : {Kernel{1, 2}, {2, 1}, {1, 3}, {3, 2}, {9, 12}}) {
      for (const int64_t side : {6, 17}) {  // a task of one row, and of several
        const Problem problem{{2, 4, side, side + 2},
                              {20, 4, r, s},
                              {.stride = {down, right}, .padding = {r / 2, s / 2}},
                              concat(r, "x", s, " stride ", down, "x", right, " side ", side)};
        const Wanted wanted(problem);
        for (const DType dtype : {DType::f32, DType::f16}) {
          for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
            check(problem, wanted, {"", dtype}, kCpu, format, format);
          }
        }
      }
    }
  }
}

// The CPU cuts sums of more than 768 terms: along the channels, along either axis of the window,
// along a row of outputs, and after as many images.
TEST(Conv2dChains, AreCutWithoutLoss) {
  const Problem problems[] = {
      {{1, 800, 2, 3}, {17, 800, 2, 2}, {.padding = 1}, "800 channels"},
      {{1, 300, 3, 4}, {20, 300, 3, 3}, {.padding = 1}, "300 channels"},
      {{1, 3, 4, 5}, {800, 3, 2, 2}, {.stride = {2, 1}}, "to 800 channels"},
      {{1, 2, 40, 45}, {3, 2, 33, 30}, {.padding = {0, 2}}, "window of 33x30"},
      {{1, 1, 3, 1104}, {20, 1, 2, 1100}, {}, "window of 2x1100"},
      {{1, 8, 31, 32}, {8, 1, 29, 29}, {.groups = 8}, "depthwise window of 29x29"},
      {{1, 2, 2, 1100}, {3, 2, 1, 3}, {.padding = {0, 1}}, "row of 1100"},
      {{1, 20, 1, 1100}, {24, 20, 1, 3}, {.padding = {0, 600}}, "row beyond x"},
      {{1, 6, 1, 2301}, {6, 1, 1, 3}, {.stride = {1, 2}, .groups = 6}, "depthwise row, stride 2"},
      {{13000, 2, 1, 2}, {3, 2, 1, 1}, {}, "13000 images"},
  };
  for (const Problem& problem : problems) {
    const Wanted wanted(problem);
    for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
      check_modes_of(problem, wanted, kCpu, format, format);
  }
}

class Conv2dMatrix : public testing::TestWithParam<std::tuple<Kernel, Device>> {};
INSTANTIATE_TEST_SUITE_P(Kernels, Conv2dMatrix,
                         testing::Combine(testing::ValuesIn(kKernels),
                                          testing::Values(kCpu, kCuda)),
                         [](const auto& info) {
                           return name_of(std::get<0>(info.param), std::get<1>(info.param));
                         });

// The layers of small networks: maps of several tiles, several images in one, a first layer.
TEST_P(Conv2dMatrix, OfSmallNetworks) {
  const auto& [kernel, device] = GetParam();
  GRADUS_SKIP_WITHOUT(device);
  const auto [r, s] = kernel;
  const Conv2dOptions same{.padding = {r / 2, s / 2}};
  Conv2dOptions depthwise = same;
  depthwise.groups = 40;
  Conv2dOptions strided = depthwise;
  strided.stride = 2;
  Conv2dOptions half = same;
  half.stride = 2;
  const Problem problems[] = {
      {{3, 1, 17, 14}, {32, 1, r, s}, same, "1 to 32"},
      {{2, 3, 15, 18}, {64, 3, r, s}, same, "3 to 64"},
      {{2, 4, 12, 9}, {24, 4, r, s}, half, "4 to 24, stride 2"},
      {{1, 4, 23, 35}, {40, 4, r, s}, {}, "4 to 40, no padding"},
      {{2, 32, 19, 28}, {32, 32, r, s}, same, "32 to 32"},
      {{5, 64, 7, 7}, {64, 64, r, s}, same, "64 to 64"},
      {{3, 64, 14, 14}, {32, 64, r, s}, half, "64 to 32, stride 2"},
      {{2, 40, 13, 18}, {40, 1, r, s}, depthwise, "depthwise 40"},
      {{2, 40, 37, 7}, {40, 1, r, s}, depthwise, "depthwise 40, tall"},
      {{1, 40, 70, 9}, {40, 1, r, s}, strided, "depthwise 40, tall, stride 2"},
  };
  const auto format = MemoryFormat::channels_last;
  for (const Problem& problem : problems)
    check_modes_of(problem, Wanted(problem), device, format, format);
}

class Conv2dFirst : public testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    if (GetParam() == kCuda && !has_gpu()) GTEST_SKIP() << "no GPU";
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, Conv2dFirst, testing::Values(kCpu, kCuda),
                         [](const auto& info) { return info.param == kCpu ? "Cpu" : "Cuda"; });

// First layers' tiles: one of few pixels; last ones of fewer rows; more than there are blocks; rows
// of x of any length; channels of y that fill none of a block's, some, or those of two.
TEST_P(Conv2dFirst, TilesOfAllSizes) {
  const Conv2dOptions same{.padding = 1};
  const Problem problems[] = {
      {{1, 1, 3, 5}, {8, 1, 3, 3}, {}, "1 to 8, three pixels"},
      {{1, 1, 1, 5}, {40, 1, 1, 1}, {}, "1 to 40, one row"},
      {{1, 3, 41, 37}, {40, 3, 3, 3}, same, "3 to 40"},
      {{2, 3, 61, 33}, {72, 3, 3, 3}, same, "3 to 72"},
      {{1, 4, 47, 22}, {132, 4, 3, 3}, {.stride = 2, .padding = 1, .dilation = 2}, "4 to 132"},
      {{2, 4, 26, 31}, {8, 4, 2, 3}, {.padding = {1, 0}, .dilation = 3}, "4 to 8, dilation 3"},
      {{1, 1, 95, 30}, {32, 1, 5, 5}, {.padding = 2}, "1 to 32, 5x5"},
      {{700, 1, 6, 7}, {16, 1, 3, 3}, same, "1 to 16, many images"},
      {{301, 3, 5, 5}, {64, 3, 3, 3}, same, "3 to 64, many images"},
  };
  for (const Problem& problem : problems) {
    const Wanted wanted(problem);
    for (const MemoryFormat format : {MemoryFormat::channels_last, MemoryFormat::contiguous}) {
      check_modes_of(problem, wanted, GetParam(), format, MemoryFormat::channels_last);
    }
  }
}

// The last tile of an image has rows of x that no output reads, and fewer outputs than others.
TEST_P(Conv2dFirst, PixelsThatNoOutputReadsDoNotCount) {
  const Problem problem{{2, 3, 208, 12}, {8, 3, 3, 3}, {.stride = 2}, "unused row and column"};
  Wanted wanted(problem);
  for (int64_t i = 0; i < wanted.x.shape.numel(); ++i) {
    if (i / 12 % 208 == 207 || i % 12 == 11) wanted.x.data[i] = std::nan("");
  }
  check_modes_of(problem, wanted, GetParam(), MemoryFormat::channels_last,
                 MemoryFormat::channels_last);
}

class Conv2dDepthwise : public Conv2dFirst {};
INSTANTIATE_TEST_SUITE_P(Devices, Conv2dDepthwise, testing::Values(kCpu, kCuda),
                         [](const auto& info) { return info.param == kCpu ? "Cpu" : "Cuda"; });

// Strips of outputs go on beyond the last column, where the last column of x may be that of another
// tap, or of none.
TEST_P(Conv2dDepthwise, StripsBeyondTheLastColumnDoNotCount) {
  const Problem problems[] = {
      {{2, 8, 12, 12}, {8, 1, 3, 3}, {.stride = 2, .groups = 8}, "unused column"},
      {{2, 8, 9, 5}, {8, 1, 3, 3}, {.groups = 8}, "column of one tap"},
      {{2, 40, 37, 7}, {40, 1, 3, 3}, {.groups = 40}, "column of one tap, tall"},
      {{1, 8, 5, 37}, {8, 1, 3, 3}, {.groups = 8}, "column of one tap, two blocks"},
      {{1, 8, 5, 78}, {8, 1, 3, 3}, {.stride = 2, .groups = 8}, "unused column, two blocks"},
  };
  for (const Problem& problem : problems) {
    Wanted wanted(problem);
    const int64_t width = problem.x[3], count = wanted.x.shape.numel();
    for (int64_t i = width - 1; i < count; i += width) wanted.x.data[i] = std::nan("");
    wanted.compute(problem);
    check_modes_of(problem, wanted, GetParam(), MemoryFormat::channels_last,
                   MemoryFormat::channels_last);
  }
}

}  // namespace
}  // namespace gradus
