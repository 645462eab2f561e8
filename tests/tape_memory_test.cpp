// Whose memory the tape's gradients have, and what a refused write leaves, on each device.
#include <gtest/gtest.h>

#include "autograd/grad_mode.h"
#include "autograd/node.h"
#include "autograd/ops/arithmetic.h"
#include "autograd/ops/conv2d.h"
#include "autograd/ops/matmul.h"
#include "tests/support/each_device.h"
#include "tests/support/expect_error.h"

namespace gradus {
namespace {

using Values = std::vector<double>;
constexpr auto kAutograd = ErrorCode::autograd;

Values grad_of(const Tensor& x) { return x.grad().to_vector<double>(); }

class TapeMemory : public test::EachDevice {
 protected:
  Tensor tensor(const Values& values, const Shape& shape) {
    return Tensor::from_vector(values, shape, {.dtype = DType::f64, .device = GetParam()});
  }
  Tensor leaf(const Values& values, const Shape& shape) {
    return tensor(values, shape).set_requires_grad(true);
  }
};
GRADUS_ON_EACH_DEVICE(TapeMemory);

TEST_P(TapeMemory, D076_GradientsNeverShareMemory) {
  const Tensor x = leaf({2}, {1}), y = leaf({3}, {1});
  const Tensor z = x + y;
  (x / z).backward();
  EXPECT_DOUBLE_EQ(grad_of(x)[0], 0.12);
  EXPECT_DOUBLE_EQ(grad_of(y)[0], -0.08);
  const Tensor a = leaf({1, 2}, {2}), b = leaf({3, 4}, {2});
  // add hands the tensor that mul made on to both of its operands.
  const auto run = [&] { ((a + b) * 2.0).backward(tensor({1, 1}, {2})); };
  run();
  EXPECT_NE(a.grad().storage(), b.grad().storage());
  run();
  EXPECT_EQ(grad_of(a), (Values{4, 4}));
  EXPECT_EQ(grad_of(b), (Values{4, 4}));
  const Tensor c = leaf({5}, {1});
  (c + c).backward();
  EXPECT_EQ(grad_of(c), Values{2});
}

TEST_P(TapeMemory, AGradientThatNobodyElseHoldsIsAddedToInPlace) {
  const Tensor x = leaf({1, 2}, {2}), dy = tensor({3, 4}, {2});
  (x * 1.0).backward(dy);
  const void* const place = x.grad().storage()->data();
  (x * 1.0).backward(dy);
  EXPECT_EQ(x.grad().storage()->data(), place);
  EXPECT_EQ(grad_of(x), (Values{6, 8}));
}

// Of an op that computes its slope in the forward, with the history of x.
TEST_P(TapeMemory, GradientsOfAnyNodeCarryNoHistory) {
  struct SquareNode final : Node {
    Tensor slope;
    std::string_view name() const override { return "square"; }
    void backward(const Tensor&, Gradients& grads) override { grads.set(0, slope); }
  };
  std::weak_ptr<Storage> kept;
  {
    const Tensor x = leaf({3}, {1}), y = tensor({9}, {1});
    auto node = make_node<SquareNode>(x);
    node->slope = x * 2.0;
    attach(y, std::move(node));
    y.backward();
    EXPECT_EQ(grad_of(x), Values{6});
    EXPECT_FALSE(x.grad().requires_grad());
    kept = x.grad().storage();
  }
  EXPECT_TRUE(kept.expired()) << "a gradient that holds its leaf is never freed";
}

TEST_P(TapeMemory, D081_ExpandedLeaves) {
  const Tensor base = tensor({1, 2}, {1, 2}), w = tensor({1, 2, 3, 4}, {2, 2});
  const Tensor identity = tensor({1, 0, 0, 1}, {2, 2});
  Tensor x = base.expand({2, 2}).set_requires_grad(true);
  matmul(x, w).backward(identity);
  EXPECT_EQ(grad_of(x), (Values{1, 3, 2, 4}));
  EXPECT_TRUE(x.grad().is_contiguous());
  matmul(x, w).backward(identity);
  EXPECT_EQ(grad_of(x), (Values{2, 6, 4, 8}));
  const Tensor b = leaf({1, 2}, {1, 2});
  matmul(b.expand({2, 2}), w).backward(identity);
  EXPECT_EQ(grad_of(b), (Values{3, 7}));
}

// The memory of an operand is let go with its last handle if no gradient needs it.
TEST_P(TapeMemory, WhatNoGradientNeedsIsNotKept) {
  const Tensor other = tensor({1, 2, 3, 4}, {2, 2});
  const auto is_kept = [&](const auto& op, bool is_left) {
    Tensor own = tensor({1, 2, 3, 4}, {2, 2}).set_requires_grad(true);
    const std::weak_ptr<Storage> memory = own.storage();
    const Tensor y = is_left ? op(own, other) : op(other, own);
    own = Tensor();
    return !memory.expired();
  };
  const auto image = [](const Tensor& x) { return x.unsqueeze(0).unsqueeze(0); };
  const auto convolve = [&](const Tensor& x, const Tensor& w) {
    return conv2d(image(x), image(w));
  };
  const auto times = [](const Tensor& a, const Tensor& b) { return linear(a, b); };
  for (const bool is_left : {true, false}) {
    EXPECT_FALSE(is_kept(mul, is_left)) << is_left;
    EXPECT_FALSE(is_kept(matmul, is_left)) << is_left;
    EXPECT_FALSE(is_kept(times, is_left)) << is_left;
    EXPECT_FALSE(is_kept(convolve, is_left)) << is_left;
  }
  EXPECT_FALSE(is_kept(div, true));
  EXPECT_TRUE(is_kept(div, false));
}

TEST_P(TapeMemory, D078_RefusedWritesLeaveNoTrace) {
  Tensor a = leaf({1, 2, 3}, {3});
  Tensor result = a * 2.0, plain = tensor({1, 1, 1}, {3});
  const Tensor ones = tensor({1, 1, 1}, {3});
  const std::string place = "f64[3]@" + to_string(GetParam());
  for (Tensor* target : {&a, &result}) {
    const Values before = target->to_vector<double>();
    EXPECT_ERROR(target->add_(ones), kAutograd, "add_: an in-place write to " + place);
    EXPECT_ERROR(target->mul_(2), kAutograd, "mul_: ");
    EXPECT_ERROR(target->copy_(ones), kAutograd, "copy_: ");
    EXPECT_ERROR(target->zero_(), kAutograd, "fill_: ", "do it under NoGradGuard");
    EXPECT_ERROR(target->slice(0, 0, 1).fill_(7), kAutograd, "which has history");
    EXPECT_EQ(target->to_vector<double>(), before);
    EXPECT_EQ(target->storage()->version(), 0u);
  }
  // What is written must have no history either: its gradient would be lost.
  EXPECT_ERROR(plain.add_(result), kAutograd, "add_: writing " + place, "pass its detach()");
  EXPECT_ERROR(plain.copy_(a), kAutograd, "copy_: writing " + place);
  EXPECT_EQ(plain.to_vector<double>(), (Values{1, 1, 1}));
  EXPECT_EQ(plain.storage()->version(), 0u);
  plain.add_(result.detach());
  const NoGradGuard no_grad;
  a.add_(ones);
  EXPECT_EQ(a.to_vector<double>(), (Values{2, 3, 4}));
  EXPECT_EQ(a.storage()->version(), 1u);
}

}  // namespace
}  // namespace gradus
