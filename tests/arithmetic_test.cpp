// add, sub, mul, div and affine: values, broadcasting, gradients, empty tensors, refusals.
#include "autograd/ops/arithmetic.h"

#include <cmath>
#include <limits>

#include "autograd/ops/sum.h"
#include "core/generator.h"
#include "tests/support/each_device.h"
#include "tests/support/expect_error.h"
#include "tests/support/op_modes.h"

namespace gradus {
namespace {

GRADUS_TEST_OP_CASES(arithmetic);

using Values = std::vector<double>;

class Arithmetic : public test::EachDevice {
 protected:
  Tensor f64(const Values& values, const Shape& shape) {
    return Tensor::from_vector(values, shape, {.dtype = DType::f64, .device = GetParam()});
  }
  Tensor leaf(const Values& values, const Shape& shape) {
    return f64(values, shape).set_requires_grad(true);
  }
  TensorOptions options(DType dtype) const { return {.dtype = dtype, .device = GetParam()}; }
};
GRADUS_ON_EACH_DEVICE(Arithmetic);

TEST_P(Arithmetic, ComputesEachKindInEveryDtype) {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    const Tensor a = f64({1, -2, 3, 8}, {4}).to(dtype), b = f64({4, 0.5, -1, 2}, {4}).to(dtype);
    EXPECT_EQ((a + b).dtype(), dtype);
    EXPECT_EQ((a + b).to_vector<double>(), (Values{5, -1.5, 2, 10})) << to_string(dtype);
    EXPECT_EQ((a - b).to_vector<double>(), (Values{-3, -2.5, 4, 6})) << to_string(dtype);
    EXPECT_EQ((a * b).to_vector<double>(), (Values{4, -1, -3, 16})) << to_string(dtype);
    EXPECT_EQ((a / b).to_vector<double>(), (Values{0.25, -4, -3, 4})) << to_string(dtype);
    EXPECT_EQ(add(a, b, 2).to_vector<double>(), (Values{9, -1, 1, 12})) << to_string(dtype);
    EXPECT_EQ(sub(a, b, 2).to_vector<double>(), (Values{-7, -3, 5, 4})) << to_string(dtype);
    EXPECT_EQ(affine(a, 2, -1).to_vector<double>(), (Values{1, -5, 5, 15})) << to_string(dtype);
  }
}

// The sign of a zero is IEEE's, as in PyTorch; x + 0 is the only one that changes it.
TEST_P(Arithmetic, ZerosKeepTheirSign) {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    const Tensor x = f64({0.0, -0.0}, {2}).to(dtype);
    const auto signs = [](const Tensor& y) {
      const Values values = y.to_vector<double>();
      return std::vector<bool>{std::signbit(values[0]), std::signbit(values[1])};
    };
    EXPECT_EQ(signs(x), (std::vector<bool>{false, true})) << to_string(dtype);
    EXPECT_EQ(signs(-x), (std::vector<bool>{true, false})) << to_string(dtype);
    EXPECT_EQ(signs(x * -2.0), (std::vector<bool>{true, false})) << to_string(dtype);
    EXPECT_EQ(signs(x - 0.0), (std::vector<bool>{false, true})) << to_string(dtype);
    EXPECT_EQ(signs(x + 0.0), (std::vector<bool>{false, false})) << to_string(dtype);
    EXPECT_EQ(signs(x.clone().mul_(-1.0)), (std::vector<bool>{true, false})) << to_string(dtype);
  }
}

TEST_P(Arithmetic, ComputesWithNumbers) {
  const Tensor x = f64({1, 2, -4}, {3});
  EXPECT_EQ((x + 1).to_vector<double>(), (Values{2, 3, -3}));
  EXPECT_EQ((1 + x).to_vector<double>(), (Values{2, 3, -3}));
  EXPECT_EQ((x - 1).to_vector<double>(), (Values{0, 1, -5}));
  EXPECT_EQ((1 - x).to_vector<double>(), (Values{0, -1, 5}));
  EXPECT_EQ((x * 3).to_vector<double>(), (Values{3, 6, -12}));
  EXPECT_EQ((3 * x).to_vector<double>(), (Values{3, 6, -12}));
  EXPECT_EQ((x / 4).to_vector<double>(), (Values{0.25, 0.5, -1}));
  EXPECT_EQ((8 / x).to_vector<double>(), (Values{8, 4, -2}));
  EXPECT_EQ((-x).to_vector<double>(), (Values{-1, -2, 4}));
}

TEST_P(Arithmetic, DividesByANumberWithOneRounding) {
  const Tensor x = f64({5, 7, 11}, {3}).to(DType::f32);
  EXPECT_EQ((x / 3).to_vector<float>(), (std::vector<float>{5.f / 3.f, 7.f / 3.f, 11.f / 3.f}));
  // In 16 bits the number keeps its digits (1003 is no bf16) and its range (70000 is no f16).
  const Tensor half = f64({60000}, {1}).to(DType::f16),
               brain = f64({1003 * 8}, {1}).to(DType::bf16);
  EXPECT_EQ((half / 70000).item<double>(), static_cast<float>(Half(60000.0 / 70000.0)));
  EXPECT_EQ((brain / 1003).item<double>(),
            static_cast<float>(BFloat16(brain.item<double>() / 1003)));
  EXPECT_EQ((70000 / half).item<double>(), static_cast<float>(Half(70000.0 / half.item<double>())));
}

TEST_P(Arithmetic, RoundsSixteenBitResultsOnce) {
  // 2049 is a tie in f16; the sum with 2^-12 lies above it and must round up.
  const Tensor a = f64({2048}, {1}).to(DType::f16), b = f64({1 + 0x1p-10}, {1}).to(DType::f16);
  EXPECT_EQ((a + b).item<double>(), 2050);
}

TEST_P(Arithmetic, Broadcasts) {
  const Tensor a = f64({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_EQ((a + f64({10, 20, 30}, {3})).to_vector<double>(), (Values{11, 22, 33, 14, 25, 36}));
  EXPECT_EQ((a + f64({10, 20}, {2, 1})).to_vector<double>(), (Values{11, 12, 13, 24, 25, 26}));
  EXPECT_EQ((f64({10}, {}) - a).to_vector<double>(), (Values{9, 8, 7, 6, 5, 4}));
  const Tensor outer = f64({1, 2}, {2, 1}) * f64({3, 4, 5}, {1, 3});
  EXPECT_EQ(outer.shape(), (Shape{2, 3}));
  EXPECT_EQ(outer.to_vector<double>(), (Values{3, 4, 5, 6, 8, 10}));
  EXPECT_ERROR(a + f64({1, 2}, {2}), ErrorCode::invalid_argument, "add: shapes [2,3] and [2]");
}

// A bias per channel in both memory formats, on either side, of views whose packs are not aligned:
// the same bits as with the bias written out.
TEST_P(Arithmetic, BroadcastsOfUnalignedViews) {
  const Shape shape{2, 16, 3, 8};
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      for (const int64_t offset : {0, 1}) {
        Values values(static_cast<size_t>(shape.numel())), shifts(16 + 1);
        for (size_t i = 0; i < values.size(); ++i) values[i] = 0.25 * static_cast<double>(i % 37);
        for (size_t c = 0; c < shifts.size(); ++c) shifts[c] = static_cast<double>(c) - 5.5;
        const Tensor x = f64(values, shape).to(dtype).contiguous(format);
        const Tensor bias = f64(shifts, {17}).to(dtype).slice(0, offset, offset + 16);
        const Tensor b = bias.reshape({16, 1, 1}), whole = b.expand(shape).contiguous(format);
        EXPECT_EQ((x - b).to_vector<double>(), (x - whole).to_vector<double>());
        EXPECT_EQ((b - x).to_vector<double>(), (whole - x).to_vector<double>());
        const Tensor flat = Tensor::zeros({shape.numel() + 1}, options(dtype));
        const Tensor view = flat.slice(0, offset, offset + shape.numel()).reshape(shape);
        Tensor(view).add_(x.contiguous());
        EXPECT_EQ((view * b).to_vector<double>(), (x * whole).contiguous().to_vector<double>());
        Tensor(view).add_(b);
        EXPECT_EQ(view.to_vector<double>(), (x + whole).contiguous().to_vector<double>());
      }
    }
  }
}

// As the gradient of a sum is: of the whole shape, but with strides of 0.
TEST_P(Arithmetic, ViewsThatRepeatAreAsWholeTensors) {
  const std::pair<Shape, Shape> shapes[] = {
      {{5, 7}, {1, 1}}, {{5, 24}, {1, 24}}, {{3, 5, 7}, {3, 5, 1}}, {{2, 16, 3, 5}, {1, 16, 1, 1}}};
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    for (const auto& [shape, repeated] : shapes) {
      Tensor a = rand(shape, options(dtype));
      if (shape.rank() == 4) a = a.contiguous(MemoryFormat::channels_last);
      const Tensor b = (rand(repeated, options(dtype)) + 0.5).expand(shape);
      const Tensor whole = b.contiguous();
      EXPECT_EQ((a * b).to_vector<double>(), (a * whole).to_vector<double>()) << to_string(dtype);
      EXPECT_EQ((b - a).to_vector<double>(), (whole - a).to_vector<double>()) << to_string(dtype);
      EXPECT_EQ((b / b).to_vector<double>(), Values(static_cast<size_t>(shape.numel()), 1.0));
    }
  }
}

TEST_P(Arithmetic, ReadsAnyStrides) {
  const Tensor a = f64({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_EQ((a.transpose(0, 1) + f64({1, 2, 3, 4, 5, 6}, {3, 2})).to_vector<double>(),
            (Values{2, 6, 5, 9, 8, 12}));
  EXPECT_EQ((a.slice(1, 0, 3, 2) * a.slice(1, 1, 3)).to_vector<double>(), (Values{2, 9, 20, 36}));
}

TEST_P(Arithmetic, KeepsChannelsLast) {
  const Tensor x = Tensor::full(
      {2, 3, 4, 5}, 2,
      {.dtype = DType::f64, .device = GetParam(), .format = MemoryFormat::channels_last});
  const Tensor bias = f64({1, 2, 3}, {3, 1, 1});
  EXPECT_TRUE((x + bias).is_contiguous(MemoryFormat::channels_last));
  EXPECT_TRUE((bias + x).is_contiguous(MemoryFormat::channels_last));
  EXPECT_TRUE((-x).is_contiguous(MemoryFormat::channels_last));
  // Where neither operand has the shape of the result there is no format to keep.
  const Tensor pixel = x.slice(0, 0, 1), samples = f64({1, 2}, {2, 1, 1, 1});
  EXPECT_TRUE((pixel + samples).is_contiguous());
  EXPECT_EQ((samples.unsqueeze(0) + pixel).shape(), (Shape{1, 2, 3, 4, 5}));
  EXPECT_EQ((x + bias).to_vector<float>(), (x.contiguous() + bias).contiguous().to_vector<float>());
}

TEST_P(Arithmetic, LongRowsAndManyRowsAreCovered) {
  // More than one tile along the row, and more rows than one tile.
  for (const Shape& shape : {Shape{3, 40001}, Shape{40001, 3}, Shape{100003}}) {
    std::vector<double> values(static_cast<size_t>(shape.numel()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
    const Tensor x = f64(values, shape);
    const std::vector<double> doubled = (x + x).to_vector<double>();
    const std::vector<double> shifted = (x + f64({0.5}, {1})).to_vector<double>();
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(doubled[i], 2 * values[i]);
      ASSERT_EQ(shifted[i], values[i] + 0.5);
    }
  }
}

TEST_P(Arithmetic, PassesNanAndInfinity) {
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor a = f64({inf, -inf, inf, 0}, {4}), b = f64({1, 1, -inf, 0}, {4});
  const Values sum = (a + b).to_vector<double>(), quotient = (a / b).to_vector<double>();
  EXPECT_EQ(sum[0], inf);
  EXPECT_EQ(sum[1], -inf);
  EXPECT_TRUE(std::isnan(sum[2]));
  EXPECT_TRUE(std::isnan(quotient[3]));
}

TEST_P(Arithmetic, GradientsOfAddAndSub) {
  Tensor a = leaf({1, 2, 3, 4}, {2, 2}), b = leaf({5, 6}, {2});
  const Tensor dy = f64({1, 10, 100, 1000}, {2, 2});
  add(a, b, 3).backward(dy);
  EXPECT_EQ(a.grad().to_vector<double>(), (Values{1, 10, 100, 1000}));
  EXPECT_EQ(b.grad().to_vector<double>(), (Values{303, 3030}));
  a.zero_grad();
  b.zero_grad();
  sub(b, a).backward(dy);
  EXPECT_EQ(a.grad().to_vector<double>(), (Values{-1, -10, -100, -1000}));
  EXPECT_EQ(b.grad().to_vector<double>(), (Values{101, 1010}));
}

// The sum over what b repeats along, 70,000, has no f16; half of it has.
TEST_P(Arithmetic, AFactorOfASixteenBitGradientIsRoundedOnce) {
  const Tensor a = Tensor::zeros({70000}, options(DType::f16));
  for (const double factor : {0.5, -0.5}) {
    const Tensor b = Tensor::zeros({1}, options(DType::f16)).set_requires_grad(true);
    add(a, b, factor).backward(Tensor::ones({70000}, options(DType::f16)));
    EXPECT_EQ(b.grad().item<double>(), factor * 70016);  // 35,008: 35,000 has no f16 either
  }
}

TEST_P(Arithmetic, GradientsOfMulAndDiv) {
  Tensor a = leaf({1, 2, 3, 4}, {2, 2}), b = leaf({2, 4}, {2, 1});
  const Tensor dy = f64({1, 10, 100, 1000}, {2, 2});
  mul(a, b).backward(dy);
  EXPECT_EQ(a.grad().to_vector<double>(), (Values{2, 20, 400, 4000}));
  EXPECT_EQ(b.grad().to_vector<double>(), (Values{21, 4300}));
  a.zero_grad();
  b.zero_grad();
  div(a, b).backward(dy);
  EXPECT_EQ(a.grad().to_vector<double>(), (Values{0.5, 5, 25, 250}));
  EXPECT_EQ(b.grad().to_vector<double>(), (Values{-(1 + 20) / 4., -(300 + 4000) / 16.}));
}

TEST_P(Arithmetic, GradientsOfNumbers) {
  const Tensor x = leaf({1, 2}, {2});
  sum(3 * x - 1 + (1 - x) + x / 4 + 8 / x - (-x)).backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (Values{3 - 1 + 0.25 - 8 + 1, 3 - 1 + 0.25 - 2 + 1}));
}

// Only the operands that ask for a gradient get one, and the others' work is skipped.
TEST_P(Arithmetic, FrozenOperandsGetNoGradient) {
  using Function = Tensor (*)(const Tensor&, const Tensor&);
  const Function functions[] = {
      [](const Tensor& a, const Tensor& b) { return add(a, b); },
      [](const Tensor& a, const Tensor& b) { return sub(a, b); },
      [](const Tensor& a, const Tensor& b) { return mul(a, b); },
      [](const Tensor& a, const Tensor& b) { return div(a, b); },
  };
  for (const Function f : functions) {
    Values grads[2];
    for (int mask = 3; mask >= 0; --mask) {
      Tensor a = f64({1, 2}, {2}), b = f64({3, 5}, {2});
      a.set_requires_grad(mask & 1);
      b.set_requires_grad(mask & 2);
      const Tensor y = f(a, b);
      EXPECT_EQ(y.requires_grad(), mask != 0);
      if (mask == 0) {
        EXPECT_ERROR(y.backward(f64({1, 7}, {2})), ErrorCode::autograd, "expected a tensor with");
        continue;
      }
      y.backward(f64({1, 7}, {2}));
      EXPECT_EQ(a.grad().defined(), (mask & 1) != 0);
      EXPECT_EQ(b.grad().defined(), (mask & 2) != 0);
      if (mask == 3) {
        grads[0] = a.grad().to_vector<double>();
        grads[1] = b.grad().to_vector<double>();
      } else {
        const Tensor& wanted = mask & 1 ? a : b;
        EXPECT_EQ(wanted.grad().to_vector<double>(), grads[mask & 1 ? 0 : 1]);
      }
    }
  }
}

TEST_P(Arithmetic, EmptyTensors) {
  for (const Shape& shape : {Shape{0}, Shape{0, 3}, Shape{3, 0}}) {
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      Tensor a = Tensor::empty(shape, options(dtype)), b = Tensor::empty(shape, options(dtype));
      a.set_requires_grad(true);
      b.set_requires_grad(true);
      const Tensor y = 2 * (a + b) * (a - b) / b;
      EXPECT_EQ(y.shape(), shape);
      y.backward(Tensor::empty(shape, options(dtype)));
      EXPECT_EQ(a.grad().shape(), shape);
      EXPECT_EQ(b.grad().shape(), shape);
    }
  }
  // An operand repeated along an empty axis has gradient 0, not garbage.
  const Tensor row = leaf({1, 2, 3}, {3});
  (Tensor::empty({0, 3}, options(DType::f64)) * row)
      .backward(Tensor::empty({0, 3}, options(DType::f64)));
  EXPECT_EQ(row.grad().to_vector<double>(), (Values{0, 0, 0}));
}

// Of memory that is said to be on a GPU; nothing touches it.
TEST(ArithmeticDevices, MustBeTheSame) {
  float memory[2] = {};
  const Tensor host = Tensor::ones({2}), other = Tensor::wrap(memory, {2}, {.device = kCuda});
  EXPECT_ERROR(host + other, ErrorCode::invalid_argument,
               "arithmetic: all tensors must be on one device, got f32[2]@cpu and f32[2]@cuda:0");
  EXPECT_ERROR(Tensor(host).add_(other), ErrorCode::invalid_argument, "one device");
  EXPECT_EQ(host.to_vector<double>(), (Values{1, 1}));
}

TEST_P(Arithmetic, RefusesMixedAndIntegerDtypes) {
  const Tensor a = Tensor::ones({2}, options(DType::f32)),
               b = Tensor::ones({2}, options(DType::f16));
  EXPECT_ERROR(a + b, ErrorCode::invalid_argument,
               "add: expected two tensors of one floating dtype, got f32[2]@");
  EXPECT_ERROR(a / b, ErrorCode::invalid_argument, "div: ");
  const Tensor i = Tensor::ones({2}, options(DType::i64));
  EXPECT_ERROR(i * i, ErrorCode::invalid_argument, "mul: ", "i64[2]@");
  EXPECT_ERROR(i * 2, ErrorCode::invalid_argument, "affine: ", "i64[2]@");
}

}  // namespace
}  // namespace gradus
