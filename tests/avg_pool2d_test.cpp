// avg_pool2d and adaptive_avg_pool2d: cases known by hand, wrong variants, refusals.
#include "autograd/ops/avg_pool2d.h"

#include <cmath>

#include "autograd/grad_mode.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/each_device.h"
#include "tests/support/expect_error.h"
#include "tests/support/reference_pool.h"

namespace gradus {
namespace {

GRADUS_TEST_OP_CASES(avg_pool2d);

using Values = std::vector<double>;
constexpr MemoryFormat kFormats[] = {MemoryFormat::contiguous, MemoryFormat::channels_last};
constexpr DType kDTypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16};

class AvgPool2d : public test::EachDevice {
 protected:
  Tensor tensor(const Shape& shape, const Values& values, DType dtype = DType::f64,
                MemoryFormat format = MemoryFormat::contiguous) {
    return Tensor::from_vector(values, shape,
                               {.dtype = dtype, .device = GetParam(), .format = format})
        .set_requires_grad(true);
  }
  // y, and dx for an upstream of ones, of a row of values pooled along it.
  void expect_row(const Values& x, AvgPool2dOptions options, const Values& want,
                  const Values& want_dx) {
    for (const DType dtype : kDTypes) {
      for (const MemoryFormat format : kFormats) {
        SCOPED_TRACE(concat(dtype, " ", format, " ", options.count_include_pad));
        const Tensor in = tensor({1, 1, 1, static_cast<int64_t>(x.size())}, x, dtype, format);
        const Tensor y = avg_pool2d(in, options);
        EXPECT_EQ(y.to_vector<double>(), want);
        if (want_dx.empty()) continue;
        y.backward(Tensor::ones(y.shape(), y.options()));
        EXPECT_EQ(in.grad().to_vector<double>(), want_dx);
      }
    }
  }
};
class AvgPool2dFaults : public AvgPool2d {};

GRADUS_ON_EACH_DEVICE(AvgPool2d);
GRADUS_ON_EACH_DEVICE(AvgPool2dFaults);

// Equal terms show what is lost of each.
TEST_P(AvgPool2dFaults, D004_LongSumsKeepTheirDigits) {
  const auto full = [&](const Shape& shape, MemoryFormat format) {
    Tensor x = Tensor::empty(shape, {.device = GetParam(), .format = format});
    return x.fill_(0.1).set_requires_grad(true);
  };
  for (const MemoryFormat format : kFormats) {
    for (const Shape& shape : {Shape{1, 1, 1024, 1024}, Shape{1, 8, 700, 500},
                               Shape{1, 2, 16384, 4}, Shape{1, 1, 1, 1 << 20}}) {
      const Tensor y =
          avg_pool2d(full(shape, format), {.kernel_size = {shape[2], shape[3]}, .padding = 0});
      for (const double mean : y.to_vector<double>()) {
        EXPECT_NEAR(mean, 0.1F, 1e-6) << concat(shape, format);
      }
    }
    const Tensor x = full({1, 1, 1, 5999}, format);
    const Tensor y = avg_pool2d(x, {.kernel_size = {1, 3000}, .stride = Pair(1)});
    y.backward(full(y.shape(), format).detach());
    EXPECT_NEAR(x.grad().to_vector<double>()[2999], 0.1F, 2e-7) << concat(format);
  }
}

TEST_P(AvgPool2dFaults, D058_OverhangIsNotPadding) {
  for (const bool include : {true, false}) {
    expect_row({2, 4, 6, 8, 10},
               {.kernel_size = {1, 2}, .ceil_mode = true, .count_include_pad = include}, {3, 7, 10},
               {0.5, 0.5, 0.5, 0.5, 1});
  }
}

TEST_P(AvgPool2dFaults, D059_OverhangBesidePadding) {
  AvgPool2dOptions options{
      .kernel_size = {1, 3}, .stride = Pair(1, 2), .padding = {0, 1}, .ceil_mode = true};
  expect_row({3, 6, 9, 12, 15, 18}, options, {3, 9, 15, 9}, {});
  options.count_include_pad = false;
  expect_row({3, 6, 9, 12, 15, 18}, options, {4.5, 9, 15, 18}, {});
}

// PyTorch's ceil mode has a window even where x is smaller than it.
TEST_P(AvgPool2d, CeilModeTakesImagesSmallerThanTheWindow) {
  expect_row({2, 4}, {.kernel_size = {2, 3}, .stride = Pair(2), .ceil_mode = true}, {3},
             {0.5, 0.5});
  expect_row({2, 4, 6, 8, 10}, {.kernel_size = 2, .ceil_mode = true}, {3, 7, 10},
             {0.5, 0.5, 0.5, 0.5, 1});
  expect_row({2}, {.kernel_size = 2, .ceil_mode = true}, {2}, {1});
  EXPECT_ERROR(avg_pool2d(tensor({1, 1, 1, 1}, {2}),
                          {.kernel_size = 3, .stride = Pair(2), .ceil_mode = true}),
               ErrorCode::invalid_argument, "padded input 1x1 is smaller");
}

TEST_P(AvgPool2d, DivisorReplacesEveryCount) {
  expect_row({2, 4, 6, 8}, {.kernel_size = {1, 2}, .divisor_override = 4}, {1.5, 3.5},
             {0.25, 0.25, 0.25, 0.25});
}

TEST_P(AvgPool2d, AdaptiveWindowsOverlapWhereTheyMust) {
  const Tensor x = tensor({1, 1, 1, 5}, {1, 2, 3, 4, 5});
  const Tensor y = adaptive_avg_pool2d(x, {1, 3});  // 0..1, 1..3, 3..4
  EXPECT_EQ(y.to_vector<double>(), (Values{1.5, 3, 4.5}));
  y.backward(tensor({1, 1, 1, 3}, {2, 3, 4}).detach());
  EXPECT_EQ(x.grad().to_vector<double>(), (Values{1, 2, 1, 3, 2}));
}

TEST_P(AvgPool2d, NanAndInfinityStayInTheirWindows) {
  for (const DType dtype : kDTypes) {
    const Tensor x = tensor({1, 1, 1, 6}, {NAN, 1, INFINITY, 1, 1, 3}, dtype);
    const Values y = avg_pool2d(x, {.kernel_size = {1, 2}}).to_vector<double>();
    EXPECT_TRUE(std::isnan(y[0]));
    EXPECT_EQ(y[1], INFINITY);
    EXPECT_EQ(y[2], 2);
  }
}

// One window too, whose y is dense in either format.
TEST_P(AvgPool2d, AdaptiveKeepsTheFormat) {
  Values data(2 * 3 * 4 * 4);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<double>(i % 11);
  const Tensor x = tensor({2, 3, 4, 4}, data).detach();
  const Tensor last = x.contiguous(MemoryFormat::channels_last).set_requires_grad(true);
  for (const int64_t size : {1, 2}) {
    const Tensor y = adaptive_avg_pool2d(last, size);
    EXPECT_EQ(y.options().format, MemoryFormat::channels_last);
    EXPECT_EQ(adaptive_avg_pool2d(x, size).options().format, MemoryFormat::contiguous);
    EXPECT_EQ(y.to_vector<double>(), adaptive_avg_pool2d(x, size).to_vector<double>());
  }
  adaptive_avg_pool2d(last, 1).backward(Tensor::ones({2, 3, 1, 1}, x.options()));
  EXPECT_EQ(last.grad().to_vector<double>(), Values(data.size(), 1.0 / 16));
}

// One window of the whole image keeps the format, too, whichever way its divisor sends it.
TEST_P(AvgPool2d, OneWindowOfTheImage) {
  Values data(2 * 3 * 4 * 4);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<double>(i % 11);
  for (const MemoryFormat format : kFormats) {
    for (const int64_t divisor : {16, 32}) {
      const Tensor x = tensor({2, 3, 4, 4}, data, DType::f32, format);
      const Tensor y = avg_pool2d(x, {.kernel_size = 4, .divisor_override = divisor});
      EXPECT_EQ(y.shape(), (Shape{2, 3, 1, 1}));
      EXPECT_EQ(y.options().format, format);
      for (size_t plane = 0; plane < 6; ++plane) {
        double sum = 0;
        for (size_t i = 0; i < 16; ++i) sum += data[plane * 16 + i];
        EXPECT_EQ(y.to_vector<double>()[plane], sum / static_cast<double>(divisor));
      }
      y.backward(Tensor::ones({2, 3, 1, 1}, {.device = GetParam()}));
      EXPECT_EQ(x.grad().to_vector<double>(),
                Values(data.size(), 1 / static_cast<double>(divisor)));
    }
  }
}

// 4096 ones added in f16 would stop at 2048.
TEST_P(AvgPool2d, SumsInAcc) {
  const Tensor x = tensor({1, 1, 64, 64}, Values(4096, 1.0), DType::f16);
  EXPECT_EQ(avg_pool2d(x, {.kernel_size = 64}).to_vector<double>(), Values{1});
}

TEST_P(AvgPool2d, EmptyBatchOtherStridesAndNoHistory) {
  const Tensor none = tensor({0, 3, 4, 4}, {});
  const Tensor y = avg_pool2d(none, {.kernel_size = 2});
  EXPECT_EQ(y.shape(), (Shape{0, 3, 2, 2}));
  y.backward(Tensor::ones(y.shape(), y.options()));
  EXPECT_EQ(none.grad().shape(), none.shape());
  EXPECT_EQ(adaptive_avg_pool2d(none, {2, 3}).shape(), (Shape{0, 3, 2, 3}));
  const Tensor x = tensor({1, 1, 2, 4}, {1, 2, 3, 4, 5, 6, 7, 8});
  const Tensor turned = avg_pool2d(x.transpose(2, 3), {.kernel_size = {2, 1}});
  EXPECT_EQ(turned.to_vector<double>(), (Values{1.5, 5.5, 3.5, 7.5}));
  const NoGradGuard no_grad;
  EXPECT_FALSE(avg_pool2d(x, {.kernel_size = 2}).requires_grad());
}

// [c, h, w] is a batch of one.
TEST_P(AvgPool2d, Unbatched) {
  using Function = Tensor (*)(const Tensor&);
  const Function functions[] = {
      [](const Tensor& x) { return avg_pool2d(x, {.kernel_size = 2}); },
      [](const Tensor& x) { return avg_pool2d(x, {.kernel_size = 3, .padding = 1}); },
      [](const Tensor& x) {
        return adaptive_avg_pool2d(x, {2, 3});
      },
      [](const Tensor& x) { return adaptive_avg_pool2d(x, 1); }};
  Values data(3 * 4 * 8);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<double>(i % 7) - 2;
  for (const Function function : functions) {
    for (const DType dtype : kDTypes) {
      const Tensor x = tensor({3, 4, 8}, data, dtype), batch = tensor({1, 3, 4, 8}, data, dtype);
      const Tensor y = function(x), want = function(batch);
      EXPECT_EQ(y.shape(), (Shape{3, want.size(2), want.size(3)}));
      EXPECT_EQ(y.to_vector<double>(), want.to_vector<double>());
      y.backward(Tensor::ones(y.shape(), y.options()));
      want.backward(Tensor::ones(want.shape(), y.options()));
      EXPECT_EQ(x.grad().shape(), x.shape());
      EXPECT_EQ(x.grad().to_vector<double>(), batch.grad().to_vector<double>());
    }
  }
}

TEST_P(AvgPool2d, RefusesWhatDoesNotFit) {
  const auto code = ErrorCode::invalid_argument;
  const Tensor x = tensor({1, 1, 2, 2}, {1, 2, 3, 4}, DType::f32);
  EXPECT_ERROR(avg_pool2d(x, {.kernel_size = 3}), code,
               "avg_pool2d: padded input 2x2 is smaller than the dilated kernel 3x3");
  EXPECT_ERROR(avg_pool2d(x, {.kernel_size = {2, 3}}), code,
               "avg_pool2d: padded input 2x2 is smaller than the dilated kernel 2x3");
  EXPECT_ERROR(avg_pool2d(x, {.kernel_size = 2, .padding = {2, 0}}), code,
               "avg_pool2d: padding must be at most half the kernel, got padding 2x0");
  EXPECT_ERROR(avg_pool2d(x, {.kernel_size = 2, .padding = {0, 2}}), code,
               "avg_pool2d: padding must be at most half the kernel, got padding 0x2");
  EXPECT_ERROR(avg_pool2d(x, {.kernel_size = 2, .divisor_override = 0}), code,
               "avg_pool2d: divisor_override must not be 0");
  EXPECT_ERROR(avg_pool2d(x, {.kernel_size = 2, .stride = Pair(0, 1)}), code,
               "stride must be positive, got 0x1");
  EXPECT_ERROR(avg_pool2d(x.reshape({2, 2}), {.kernel_size = 2}), code,
               "avg_pool2d: expected x [n, c, h, w] or [c, h, w], floating, got f32[2,2]@");
  const Tensor integers = x.detach().squeeze(0).to(DType::i64);
  EXPECT_ERROR(avg_pool2d(integers, {.kernel_size = 2}), code, "got i64[1,2,2]@");
  EXPECT_ERROR(adaptive_avg_pool2d(integers, 1), code, "got i64[1,2,2]@");
  for (const Shape& none : {Shape{1, 1, 0, 4}, Shape{1, 1, 4, 0}}) {
    const Tensor empty = tensor(none, {});
    EXPECT_ERROR(avg_pool2d(empty, {.kernel_size = 2, .padding = 1}), code,
                 "avg_pool2d: expected h, w > 0, got f64", to_string(none));
    EXPECT_ERROR(adaptive_avg_pool2d(empty, 1), code, "adaptive_avg_pool2d: expected h, w > 0");
  }
  EXPECT_ERROR(adaptive_avg_pool2d(x, {0, 1}), code,
               "adaptive_avg_pool2d: output_size must be positive, got 0x1");
}

// What a faulty kernel would give, in the terms of the reference: each must be refused in the cases
// that it concerns.
struct Mutant {
  const char* name;
  ref::AvgPool2dOptions right;
  ref::AvgPool2dOptions wrong;
};

TEST(AvgPool2dMutants, AreRejected) {
  const ref::AvgPool2dOptions padded{.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
  const auto changed = [](ref::AvgPool2dOptions options, auto&& change) {
    change(options);
    return options;
  };
  const auto without_pad = changed(padded, [](auto& o) { o.count_include_pad = false; });
  const auto with_divisor = changed(padded, [](auto& o) { o.divisor = 9; });
  const auto ceil = changed(padded, [](auto& o) { o.ceil_mode = true; });
  const auto ceil_divisor = changed(ceil, [](auto& o) { o.divisor = 9; });
  const Mutant mutants[] = {
      {"padding counted when it should not be", without_pad, padded},
      {"padding not counted when it should be", padded, without_pad},
      {"whole kernel for windows in the padding", without_pad, with_divisor},
      {"overhang counted as padding", ceil, ceil_divisor},
  };
  for (const DType dtype : kDTypes) {
    for (const Mutant& mutant : mutants) {
      const OpCase op_case{.inputs = {{.name = "x", .shape = {2, 3, 6, 8}, .mean = -4}}};
      const ref::Array x = draw_inputs(op_case, dtype, 3)[0];
      const ref::Array want = ref::avg_pool2d(x, mutant.right);
      const ref::Array got = ref::avg_pool2d(x, mutant.wrong);
      ASSERT_EQ(got.shape, want.shape);
      EXPECT_FALSE(compare(got.data, want.data, dtype, 9))
          << mutant.name << " " << to_string(dtype);
      const ref::Array dy = draw_upstream(want.shape, dtype, 4);
      EXPECT_FALSE(compare(ref::avg_pool2d_backward(x.shape, mutant.wrong, dy).data,
                           ref::avg_pool2d_backward(x.shape, mutant.right, dy).data, dtype, 9))
          << mutant.name << " backward " << to_string(dtype);
    }
  }
}

}  // namespace
}  // namespace gradus
