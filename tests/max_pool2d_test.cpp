// max_pool2d: PyTorch's goldens, cases known by hand, refusals and repeatability.
#include "autograd/ops/max_pool2d.h"

#include <cmath>
#include <limits>

#include "autograd/grad_mode.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/each_device.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/op_modes.h"

namespace gradus {
namespace {

GRADUS_TEST_OP_CASES(max_pool2d);

using Values = std::vector<double>;
constexpr MemoryFormat kFormats[] = {MemoryFormat::contiguous, MemoryFormat::channels_last};
const Window kStrided[] = {{{3, 3}, {2, 2}, {0, 0}}, {{3, 3}, {2, 2}, {1, 1}}};  // by padding
constexpr DType kDTypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16};

Values values(const Tensor& x) { return x.to_vector<double>(); }

class MaxPool2d : public test::EachDevice {
 protected:
  Tensor tensor(const Shape& shape, const Values& values, DType dtype = DType::f64,
                MemoryFormat format = MemoryFormat::contiguous) {
    return Tensor::from_vector(values, shape,
                               {.dtype = dtype, .device = GetParam(), .format = format})
        .set_requires_grad(true);
  }
  Tensor ones(const Shape& shape, DType dtype = DType::f32) {
    return Tensor::ones(shape, {.dtype = dtype, .device = GetParam()});
  }
};
class MaxPool2dFaults : public MaxPool2d {};

GRADUS_ON_EACH_DEVICE(MaxPool2d);
GRADUS_ON_EACH_DEVICE(MaxPool2dFaults);

// Equal terms show what is lost of each: so many windows hold the maximum, in the middle.
TEST_P(MaxPool2dFaults, D004_LongSumsKeepTheirDigits) {
  struct Case {
    Shape shape;
    Window window;
    double holders;
  };
  const Case cases[] = {{{1, 1, 1, 5999}, {{1, 3000}, {1, 1}}, 3000},
                        {{1, 1, 5999, 1}, {{3000, 1}, {1, 1}}, 3000},
                        {{1, 1, 199, 199}, {{100, 100}, {1, 1}}, 100 * 100},
                        {{1, 1, 1, 16382}, {{1, 4096}, {1, 1}, {0, 0}, {1, 2}}, 4096}};
  for (const MemoryFormat format : kFormats) {
    for (const auto& [shape, window, holders] : cases) {
      Tensor x = Tensor::zeros(shape, {.device = GetParam(), .format = format});
      const auto middle = [&](const Tensor& of) {
        const int64_t row = shape[2] / 2, column = (shape[3] - 1) / 2;
        return of.slice(2, row, row + 1).slice(3, column, column + 1);
      };
      middle(x).fill_(1);
      x.set_requires_grad(true);
      const Tensor y = max_pool2d(x, window);
      y.backward(Tensor::full(y.shape(), 0.1, y.options()));
      const double want = static_cast<double>(0.1F) * holders;
      EXPECT_NEAR(middle(x.grad()).item<double>(), want, 4e-6 * want) << concat(shape, " ", format);
    }
  }
}

TEST_P(MaxPool2d, AgreesWithPyTorch) {
  int cases = 0;
  for (const ref::Json& json : ref::golden_cases("max_pool2d")) {
    for (const MemoryFormat format : kFormats) {
      SCOPED_TRACE(concat(json.at("name").get<std::string>(), " ", format));
      ++cases;
      const ref::Json& args = json.at("args");
      const ref::Array x_array = ref::golden_array(json.at("inputs").at("x"));
      const Tensor x = tensor(x_array.shape, x_array.data, DType::f64, format);
      const Window window{ref::golden_pair(args, "kernel"), ref::golden_pair(args, "stride"),
                          ref::golden_pair(args, "padding"), ref::golden_pair(args, "dilation")};
      const Tensor y = max_pool2d(x, window, args.at("ceil_mode").get<bool>());
      const ref::Array want = ref::golden_array(json.at("outputs").at("y"));
      ASSERT_EQ(y.shape(), want.shape);
      EXPECT_TRUE(y.is_contiguous(format));
      EXPECT_EQ(values(y), want.data);
      const ref::Array dy = ref::golden_array(json.at("dy"));
      y.backward(tensor(dy.shape, dy.data).detach());
      const ref::Array dx = ref::golden_array(json.at("gradients").at("x"));
      EXPECT_TRUE(agrees(values(x.grad()), dx.data, DType::f64, 9));
    }
  }
  EXPECT_EQ(cases, 18);
}

TEST_P(MaxPool2dFaults, D057_PaddingNeverWins) {
  const Values x(25, -1.0);
  for (const MemoryFormat format : kFormats) {
    for (const DType dtype : kDTypes) {
      SCOPED_TRACE(concat(format, " ", dtype));
      const Tensor dropped =
          max_pool2d(tensor({1, 1, 5, 5}, x, dtype, format), {{3, 3}, {3, 3}, {1, 1}}, true);
      EXPECT_EQ(dropped.shape(), (Shape{1, 1, 2, 2}));
      EXPECT_EQ(values(dropped), Values(4, -1.0));
      const Tensor floored =
          max_pool2d(tensor({1, 1, 5, 5}, x, dtype, format), {{2, 2}, {2, 2}, {1, 1}});
      EXPECT_EQ(floored.shape(), (Shape{1, 1, 3, 3}));
      EXPECT_EQ(values(floored), Values(9, -1.0));
    }
  }
}

// The first of equals takes the whole gradient, a NaN beats every number, -inf can win.
TEST_P(MaxPool2d, TiesNansAndInfinities) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  for (const MemoryFormat format : kFormats) {
    for (const DType dtype : kDTypes) {
      SCOPED_TRACE(concat(format, " ", dtype));
      const Tensor x = tensor({1, 1, 2, 8},
                              {3, 3, 1, nan, -inf, -inf, inf, 2,  //
                               3, 3, 9, nan, -inf, -inf, 0, inf},
                              dtype, format);
      const Tensor y = max_pool2d(x, {{2, 2}, {2, 2}});
      const Values got = values(y);
      EXPECT_EQ(got[0], 3);
      EXPECT_TRUE(std::isnan(got[1]));
      EXPECT_EQ(got[2], -inf);
      EXPECT_EQ(got[3], inf);
      y.backward(tensor(y.shape(), {1, 2, 4, 8}, dtype).detach());
      EXPECT_EQ(values(x.grad()), (Values{1, 0, 0, 2, 4, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
    }
  }
}

// Overlapping windows add up: 300 ones would stop at 256 if every sum were rounded to bf16.
TEST_P(MaxPool2d, SharedMaximumSumsInAcc) {
  Values x(600, 0.0);
  x[300] = 1;
  const Tensor a = tensor({1, 1, 1, 600}, x, DType::bf16);
  const Tensor y = max_pool2d(a, {{1, 300}, {1, 1}});
  y.backward(ones(y.shape(), DType::bf16));
  EXPECT_EQ(values(a.grad())[300], 300);
}

// Values of [n, c, h, w] with many ties.
Values tied_values(const Shape& shape) {
  Values data(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<double>(i * i * 7 % 11 % 3);
  return data;
}

// The gradient of windows of 2 x 2 for an upstream of ones, where the first or the last of equals
// takes it.
Values winners(const Values& data, const Shape& shape, bool last) {
  Values taken(data.size(), 0.0);
  const int64_t height = shape[2], width = shape[3];
  for (int64_t plane = 0; plane < shape[0] * shape[1]; ++plane) {
    for (int64_t i = 0; i + 1 < height; i += 2) {
      for (int64_t j = 0; j + 1 < width; j += 2) {
        const int64_t first = (plane * height + i) * width + j;
        size_t best = static_cast<size_t>(first);
        for (const int64_t at : {first + 1, first + width, first + width + 1}) {
          const double value = data[static_cast<size_t>(at)];
          if (last ? value >= data[best] : value > data[best]) best = static_cast<size_t>(at);
        }
        taken[best] = 1;
      }
    }
  }
  return taken;
}

// In every kernel that the width, the layout and the dtype choose.
TEST_P(MaxPool2d, FirstOfEqualsWinsInEveryKernel) {
  for (const int64_t width : {2, 4, 6, 7, 8, 9, 13, 16, 27, 34, 64, 67}) {
    for (const MemoryFormat format : kFormats) {
      for (const DType dtype : kDTypes) {
        SCOPED_TRACE(concat(width, " ", format, " ", dtype));
        const Shape shape{2, 8, 5, width};
        const Values data = tied_values(shape);
        const Tensor x = tensor(shape, data, dtype, format);
        max_pool2d(x, {{2, 2}, {2, 2}}).backward(ones({2, 8, 2, width / 2}, dtype));
        EXPECT_TRUE(agrees(values(x.grad()), winners(data, shape, false), dtype, 4));
      }
    }
  }
}

// Ties of both zeros, runs of -inf and some NaNs.
Values hard_values(const Shape& shape) {
  Values data = tied_values(shape);
  for (size_t i = 0; i < data.size(); ++i) {
    if (i % 5 == 0 && data[i] == 0) data[i] = -0.0;
    if (i % 4 < 3 && i % 64 < 48) data[i] = -std::numeric_limits<double>::infinity();
    if (i % 97 == 5) data[i] = std::numeric_limits<double>::quiet_NaN();
  }
  return data;
}

// The same for overlapping windows, where NaN wins over all and -inf over nothing.
void expect_first_in_strided(const Shape& shape, int64_t padding, bool ceil_mode, Device device) {
  const int64_t height = shape[2], width = shape[3];
  const Window& window = kStrided[padding];
  const Values data = hard_values(shape);
  Values y, dx(data.size(), 0.0);
  for (int64_t plane = 0; plane < shape[0] * shape[1]; ++plane) {
    for (int64_t i = 0; i < window.pooled_positions(0, height, ceil_mode); ++i) {
      for (int64_t j = 0; j < window.pooled_positions(1, width, ceil_mode); ++j) {
        size_t best = data.size();
        for (int64_t tap = 0; tap < 9; ++tap) {
          const int64_t h = 2 * i - padding + tap / 3, w = 2 * j - padding + tap % 3;
          if (h < 0 || w < 0 || h >= height || w >= width) continue;
          const auto at = static_cast<size_t>((plane * height + h) * width + w);
          const bool wins = best == data.size() || data[at] > data[best] ||
                            (std::isnan(data[at]) && !std::isnan(data[best]));
          if (wins) best = at;
        }
        y.push_back(data[best]);
        dx[best] += 1;
      }
    }
  }
  for (const MemoryFormat format : kFormats) {
    for (const DType dtype : kDTypes) {
      SCOPED_TRACE(concat(to_string(shape), " ", padding, " ", ceil_mode, " ", format, " ", dtype));
      const TensorOptions options{.dtype = dtype, .device = device, .format = format};
      Tensor x = Tensor::from_vector(data, shape, options);
      EXPECT_TRUE(agrees(values(max_pool2d(x, window, ceil_mode)), y, dtype, 9));
      x.set_requires_grad(true);
      const Tensor got = max_pool2d(x, window, ceil_mode);
      EXPECT_TRUE(agrees(values(got), y, dtype, 9));
      got.backward(Tensor::ones(got.shape(), {.dtype = dtype, .device = device}));
      EXPECT_EQ(values(x.grad()), dx);
    }
  }
}

TEST_P(MaxPool2d, FirstOfEqualsWinsInStridedWindows) {
  for (const int64_t height : {1, 5, 6, 8}) {
    for (const int64_t width : {6, 7, 8, 16, 27, 32}) {
      for (const bool ceil_mode : {false, true}) {
        expect_first_in_strided({2, 8, height, width}, 1, ceil_mode, GetParam());
        expect_first_in_strided({2, 3, height + 2, width}, 0, ceil_mode, GetParam());
        expect_first_in_strided({2, 8, height + 2, width}, 0, ceil_mode, GetParam());
      }
    }
  }
  // Images of less than a window.
  for (const int64_t width : {2, 3, 16}) {
    expect_first_in_strided({2, 8, 2, width}, 0, true, GetParam());
    expect_first_in_strided({2, 8, width, 2}, 0, true, GetParam());
  }
}

TEST(MaxPool2dMutants, LastOfEqualsIsRejected) {
  const Shape shape{1, 2, 6, 8};
  const Values data = tied_values(shape);
  for (const DType dtype : kDTypes)
    EXPECT_FALSE(compare(winners(data, shape, true), winners(data, shape, false), dtype, 4));
}

// A view that 16-byte accesses cannot take gives the same.
TEST_P(MaxPool2d, UnalignedViews) {
  for (const Window& window : {Window{{2, 2}, {2, 2}}, kStrided[0], kStrided[1]}) {
    for (const DType dtype : kDTypes) {
      Values data(1 + 3 * 4 * 16);
      for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<double>(i * i % 13);
      const Tensor base = tensor({static_cast<int64_t>(data.size())}, data, dtype).detach();
      Tensor x = base.as_strided({1, 3, 4, 16}, strides_of({1, 3, 4, 16}), 1);
      const Tensor copy = x.clone().set_requires_grad(true);
      x.set_requires_grad(true);
      const Tensor y = max_pool2d(x, window, true), want = max_pool2d(copy, window, true);
      EXPECT_EQ(values(y), values(want));
      y.backward(ones(y.shape(), dtype));
      want.backward(ones(y.shape(), dtype));
      EXPECT_EQ(values(x.grad()), values(copy.grad()));
    }
  }
}

// More than 256 elements in a window: the index needs more than a byte.
TEST_P(MaxPool2d, LargeWindow) {
  Values x(20 * 17, 0.0);
  x[19 * 17 + 16] = 5;
  const Tensor a = tensor({1, 1, 20, 17}, x);
  const Tensor y = max_pool2d(a, {{20, 17}, {1, 1}});
  EXPECT_EQ(values(y), Values{5});
  y.backward();
  EXPECT_EQ(values(a.grad())[19 * 17 + 16], 1);
  EXPECT_EQ(values(a.grad())[0], 0);
}

// A byte tells 256 elements apart, and not one more.
TEST_P(MaxPool2d, TheLastOfAsManyElementsAsAByteTellsApartAndOfOneMore) {
  for (const int64_t width : {256, 257}) {
    Values x(static_cast<size_t>(width), 0.0);
    x.back() = 5;
    const Tensor a = tensor({1, 1, 1, width}, x);
    max_pool2d(a, {{1, width}, {1, 1}}).backward();
    x.back() = 1;
    EXPECT_EQ(values(a.grad()), x) << width;
  }
}

// Nearly all of a window lies in the padding: only its other taps are looked at.
TEST_P(MaxPool2d, HugeWindow) {
  const Window window{{20001, 20001}, {1, 1}, {10000, 10000}};
  for (const MemoryFormat format : kFormats) {
    const Tensor x = tensor({1, 2, 3, 2}, {1, 5, 3, 2, 4, 0, 1, 2, 3, 4, 6, 5}, DType::f64, format);
    const Tensor y = max_pool2d(x, window);
    EXPECT_EQ(values(y), (Values{5, 5, 5, 5, 5, 5, 6, 6, 6, 6, 6, 6}));
    y.backward(ones(y.shape(), DType::f64));
    EXPECT_EQ(values(x.grad()), (Values{0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0}));
  }
}

// PyTorch's ceil mode has a window even where x is smaller than it.
TEST_P(MaxPool2d, CeilModeTakesImagesSmallerThanTheWindow) {
  const auto expect_row = [&](const Values& row, const Window& window, const Values& want,
                              const Values& want_dx) {
    for (const DType dtype : kDTypes) {
      for (const MemoryFormat format : kFormats) {
        SCOPED_TRACE(concat(dtype, " ", format, " ", row.size()));
        const Tensor x = tensor({1, 1, 1, std::ssize(row)}, row, dtype, format);
        const Tensor y = max_pool2d(x, window, true);
        EXPECT_EQ(values(y), want);
        y.backward(ones(y.shape(), dtype));
        EXPECT_EQ(values(x.grad()), want_dx);
      }
    }
  };
  expect_row({2, 4}, {{2, 3}, 2}, {4}, {0, 1});
  expect_row({2, 4, 8, 6, 10}, {2, 2}, {4, 8, 10}, {0, 1, 1, 0, 1});
  expect_row({2}, {2, 2}, {2}, {1});
  // Numbers whose sums 32 bits do not hold.
  const int64_t most = (int64_t{1} << 31) - 1;
  expect_row({2, 4, 3}, {{1, 2}, {1, most}, 0, {1, most}}, {2}, {1, 0, 0});
  expect_row({2, 4, 3}, {{1, 3}, {1, most}, 0, {1, int64_t{1} << 30}}, {2}, {1, 0, 0});
  EXPECT_ERROR(max_pool2d(ones({1, 1, 0, 4}), {1, 2}, true), ErrorCode::invalid_argument,
               "expected images with pixels");
  EXPECT_ERROR(max_pool2d(ones({1, 1, 1, 1}), {3, 2}, true), ErrorCode::invalid_argument,
               "padded input 1x1 is smaller");
}

TEST_P(MaxPool2d, WithoutHistoryAndEmptyBatch) {
  const Tensor x = tensor({1, 1, 2, 2}, {1, 4, 2, 3});
  {
    const NoGradGuard no_grad;
    const Tensor y = max_pool2d(x, {{2, 2}, {2, 2}});
    EXPECT_EQ(values(y), Values{4});
    EXPECT_FALSE(y.requires_grad());
  }
  const Tensor none = ones({0, 3, 4, 4}).set_requires_grad(true);
  const Tensor y = max_pool2d(none, {{2, 2}, {2, 2}});
  EXPECT_EQ(y.shape(), (Shape{0, 3, 2, 2}));
  y.backward(ones(y.shape()));
  EXPECT_EQ(none.grad().shape(), none.shape());
}

// [c, h, w] is a batch of one, in every kernel that the window chooses.
TEST_P(MaxPool2d, Unbatched) {
  const Window windows[] = {{{2, 2}, {2, 2}}, kStrided[0], kStrided[1], {{3, 3}, {3, 3}}};
  for (const Window& window : windows) {
    for (const DType dtype : kDTypes) {
      SCOPED_TRACE(concat(window.kernel[0], " by ", window.stride[0], " ", dtype));
      const Values data = tied_values({1, 3, 6, 16});
      const Tensor x = tensor({3, 6, 16}, data, dtype), batch = tensor({1, 3, 6, 16}, data, dtype);
      const Tensor y = max_pool2d(x, window), want = max_pool2d(batch, window);
      EXPECT_EQ(y.shape(), (Shape{3, want.size(2), want.size(3)}));
      EXPECT_EQ(values(y), values(want));
      y.backward(ones(y.shape(), dtype));
      want.backward(ones(want.shape(), dtype));
      EXPECT_EQ(x.grad().shape(), x.shape());
      EXPECT_EQ(values(x.grad()), values(batch.grad()));
    }
  }
}

TEST_P(MaxPool2d, RefusesWhatDoesNotFit) {
  const auto code = ErrorCode::invalid_argument;
  const Tensor x = ones({1, 1, 2, 2});
  EXPECT_ERROR(max_pool2d(x, {{3, 3}, {1, 1}}), code,
               "max_pool2d: padded input 2x2 is smaller than the dilated kernel 3x3");
  EXPECT_ERROR(max_pool2d(x, {{2, 2}, {1, 1}, {2, 0}}), code,
               "max_pool2d: padding must be at most half the kernel, got padding 2x0 and kernel "
               "2x2");
  EXPECT_ERROR(max_pool2d(x.reshape({2, 2}), {{2, 2}, {1, 1}}), code,
               "max_pool2d: expected x [n, c, h, w] or [c, h, w], floating, got f32[2,2]@");
  EXPECT_ERROR(max_pool2d(x.to(DType::u8).squeeze(0), {{2, 2}, {1, 1}}), code, "got u8[1,2,2]@");
  EXPECT_ERROR(max_pool2d(x, {{2, 2}, {0, 1}}), code, "stride must be positive, got 0x1");
  EXPECT_ERROR(max_pool2d(x, {{65536, 65536}, {1, 1}, {32768, 32768}}), code,
               "kernel 65536x65536 has more than 2^31 - 1 elements");
  // Both elements of the window lie beside the only column.
  EXPECT_ERROR(max_pool2d(ones({1, 1, 1, 1}), {{1, 2}, {1, 1}, {0, 1}, {1, 2}}), code,
               "covers nothing but the padding of f32[1,1,1,1]@");
}

}  // namespace
}  // namespace gradus
