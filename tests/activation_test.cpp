// Activations: the cases, and the facts of each function.
#include "autograd/ops/activation.h"

#include <cmath>
#include <vector>

#include "autograd/grad_mode.h"
#include "autograd/ops/arithmetic.h"
#include "autograd/ops/sum.h"
#include "core/launch.h"
#include "tests/support/each_device.h"
#include "tests/support/expect_error.h"
#include "tests/support/op_modes.h"

namespace gradus {
namespace {

GRADUS_TEST_OP_CASES(activation);

using Values = std::vector<double>;
constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16};

class Relu : public test::EachDevice {
 protected:
  Tensor tensor(const Values& values, DType dtype = DType::f64) {
    return Tensor::from_vector(values, {static_cast<int64_t>(values.size())},
                               {.dtype = dtype, .device = GetParam()});
  }
};
GRADUS_ON_EACH_DEVICE(Relu);

// Fault D067.
TEST_P(Relu, PassesNanAndCutsNegativeZero) {
  for (const DType dtype : kDTypes) {
    Tensor x = tensor({NAN, -1, 2, -0.0, INFINITY, 0, -INFINITY}, dtype).set_requires_grad(true);
    const Tensor y = relu(x);
    const Values values = y.to_vector<double>();
    EXPECT_TRUE(std::isnan(values[0])) << to_string(dtype);
    EXPECT_EQ(Values(values.begin() + 1, values.end()), (Values{0, 2, 0, INFINITY, 0, 0}));
    EXPECT_FALSE(std::signbit(values[3])) << "-0 must become 0";
    sum(y).backward();
    const Values grad = x.grad().to_vector<double>();
    EXPECT_EQ(Values(grad.begin() + 1, grad.end()), (Values{0, 1, 0, 1, 0, 0}));
  }
}

TEST_P(Relu, CutOffElementsGetZeroWhateverComesDown) {
  Tensor x = tensor({-1, -1, -1, 1}).set_requires_grad(true);
  relu(x).backward(tensor({NAN, INFINITY, 5, INFINITY}));
  EXPECT_EQ(x.grad().to_vector<double>(), (Values{0, 0, 0, INFINITY}));
}

TEST_P(Relu, ReadsAnyStridesBothWays) {
  Tensor x = tensor({-1, 2, 3, -4, 5, -6}).reshape({2, 3}).detach().set_requires_grad(true);
  const Tensor y = relu(x.transpose(0, 1));
  EXPECT_EQ(y.to_vector<double>(), (Values{0, 0, 2, 5, 3, 0}));
  // The gradient of a sum is a stride-0 view.
  sum(y, {1}).backward(tensor({1, 10, 100}));
  EXPECT_EQ(x.grad().to_vector<double>(), (Values{0, 10, 100, 0, 10, 0}));
}

// An activation that keeps x keeps it as it is strided.
TEST_P(Relu, OthersReadAnyStridesBothWays) {
  Tensor x = tensor({-1, 2, 3, -4, 5, -6}).reshape({2, 3}).detach().set_requires_grad(true);
  Tensor turned = x.detach().transpose(0, 1).contiguous().set_requires_grad(true);
  const Tensor dy = tensor({1, 2, 3, 4, 5, 6}).reshape({3, 2});
  silu(x.transpose(0, 1)).backward(dy);
  silu(turned).backward(dy);
  EXPECT_EQ(x.grad().transpose(0, 1).to_vector<double>(), turned.grad().to_vector<double>());
}

TEST_P(Relu, SavesNeitherInputNorOutput) {
  Tensor x = tensor({-1, 2}).set_requires_grad(true);
  const Tensor between = x * 1.0;
  const Tensor y = relu(between);
  {
    const NoGradGuard no_grad;
    between.detach().fill_(7);
    y.detach().fill_(-7);
  }
  sum(y).backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (Values{0, 1}));
}

TEST_P(Relu, RefusesIntegers) {
  EXPECT_ERROR(relu(Tensor::ones({2}, {.dtype = DType::i32, .device = GetParam()})),
               ErrorCode::invalid_argument, "relu: expected a floating dtype, got i32[2]@");
}

// The masks of 1 to 70 elements: every count of bits in the last byte, and views that 16-byte
// accesses cannot take; and of about as many as a warp of CUDA's kernel takes.
TEST_P(Relu, MasksOfEveryLengthAndAlignment) {
  std::vector<int64_t> counts = {127, 128, 129, 255, 256, 257, 511, 512, 513, 1029};
  for (int64_t count = 1; count <= 70; ++count) counts.push_back(count);
  for (const DType dtype : kDTypes) {
    for (const int64_t count : counts) {
      Values values;
      for (int64_t i = 0; i <= count; ++i) values.push_back(i * i % 7 < 3 ? -1.0 : 2.0);
      Tensor all = tensor(values, dtype);
      for (const int64_t offset : {0, 1}) {
        Tensor x = all.slice(0, offset, offset + count).detach().set_requires_grad(true);
        relu(x).backward(Tensor::full({count}, 3, {.dtype = dtype, .device = GetParam()}));
        Values want;
        for (int64_t i = 0; i < count; ++i)
          want.push_back(values[static_cast<size_t>(i + offset)] > 0 ? 3 : 0);
        ASSERT_EQ(x.grad().to_vector<double>(), want) << to_string(dtype) << " " << count;
      }
    }
  }
}

TEST_P(Relu, OtherMasksAndParameters) {
  Tensor x = tensor({-4, -3, -1, 0, 1, 3, 6, 7}).set_requires_grad(true);
  const auto gradient = [&](const Tensor& y) {
    x.zero_grad();
    sum(y).backward();
    return x.grad().to_vector<double>();
  };
  EXPECT_EQ(relu6(x).to_vector<double>(), (Values{0, 0, 0, 0, 1, 3, 6, 6}));
  EXPECT_EQ(gradient(relu6(x)), (Values{0, 0, 0, 0, 1, 1, 0, 0}));
  EXPECT_EQ(gradient(leaky_relu(x, 0.5)), (Values{0.5, 0.5, 0.5, 0.5, 1, 1, 1, 1}));
  EXPECT_EQ(gradient(hardsigmoid(x)), (Values{0, 0, 1.0 / 6, 1.0 / 6, 1.0 / 6, 0, 0, 0}));
  EXPECT_EQ(gradient(hardswish(x)), (Values{0, 0, -1.0 / 3 + 0.5, 0.5, 1.0 / 3 + 0.5, 1, 1, 1}));
  EXPECT_EQ(elu(x, 0).to_vector<double>(), (Values{0, 0, 0, 0, 1, 3, 6, 7}));
  Tensor nan = tensor({NAN}).set_requires_grad(true);
  sum(hardsigmoid(nan)).backward();
  EXPECT_EQ(nan.grad().item<double>(), 0);
  EXPECT_ERROR(softplus(x, 0), ErrorCode::invalid_argument,
               "softplus: beta must be 2^-126 to 2^126, got 0");
  EXPECT_ERROR(gelu(x, "erf"), ErrorCode::invalid_argument,
               "gelu: approximate must be none or tanh, got 'erf'");
}

TEST(ActivationNames, RoundTrip) {
  for (const std::string& name : activation_names()) {
    EXPECT_EQ(to_string(parse_activation(name)), name);
  }
  EXPECT_EQ(parse_activation("relu"), Activation::of<gradus::Relu>());
  EXPECT_ERROR(parse_activation("rleu"), ErrorCode::invalid_argument,
               "activation: expected one of relu", "got 'rleu'");
}

// The mask as core/ops/activation.h promises it: one bit per element, 0 beyond the last.
TEST(ActivationMask, HoldsNothingBeyondTheLastElement) {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    for (const int64_t count : {1, 7, 8, 13, 21}) {
      const Tensor x = Tensor::zeros({count}, {.dtype = dtype});
      const Tensor y = empty_like(x),
                   mask = Tensor::full({mask_bytes(count)}, 255, {.dtype = DType::u8});
      launch(ActivationForward{.activation = Activation::of<Hardsigmoid>(),
                               .x = x.raw(),
                               .y = y.raw(),
                               .mask = mask.raw()});
      const std::vector<uint8_t> bytes = mask.to_vector<uint8_t>();
      for (int64_t bit = 0; bit < 8 * mask.numel(); ++bit) {
        EXPECT_EQ(bytes[static_cast<size_t>(bit / 8)] >> bit % 8 & 1, bit < count) << count;
      }
    }
  }
}

}  // namespace
}  // namespace gradus
