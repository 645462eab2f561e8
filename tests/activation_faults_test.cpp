// Families of known faults in activations, on both devices and in every dtype that they concern.
#include <cmath>

#include "autograd/ops/activation.h"
#include "autograd/ops/sum.h"
#include "tests/support/each_device.h"

namespace gradus {
namespace {

using Values = std::vector<double>;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16};

class ActivationFaults : public test::EachDevice {
 protected:
  struct Result {
    Values y, dx;
  };
  // f(x), and the gradient for an upstream of `dy` everywhere.
  template <class F>
  Result run(F&& f, const Values& values, DType dtype = DType::f32, double dy = 1) const {
    Tensor x = Tensor::from_vector(values, {static_cast<int64_t>(values.size())},
                                   {.dtype = dtype, .device = GetParam()});
    x.set_requires_grad(true);
    const Tensor y = f(x);
    y.backward(Tensor::full(y.shape(), dy, y.options()));
    return {y.to_vector<double>(), x.grad().to_vector<double>()};
  }
};
GRADUS_ON_EACH_DEVICE(ActivationFaults);

TEST_P(ActivationFaults, D060_SoftplusOfLargeInput) {
  for (const DType dtype : kDTypes) {
    SCOPED_TRACE(to_string(dtype));
    const Result result =
        run([](const Tensor& x) { return softplus(x); }, {20, 50, 100, 1000, kInf}, dtype);
    EXPECT_NEAR(result.y[0], 20, 3e-9);
    EXPECT_EQ(Values(result.y.begin() + 1, result.y.end()), (Values{50, 100, 1000, kInf}));
    EXPECT_NEAR(result.dx[0], 1, 3e-9);
    EXPECT_EQ(Values(result.dx.begin() + 1, result.dx.end()), (Values{1, 1, 1, 1}));
  }
  EXPECT_EQ(run([](const Tensor& x) { return softplus(x, 5); }, {20}).y, Values{20});
  EXPECT_EQ(run([](const Tensor& x) { return softplus(x); }, {12}, DType::f16).y, Values{12});
}

TEST_P(ActivationFaults, D061_SoftplusOfLargeNegativeInput) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    SCOPED_TRACE(to_string(dtype));
    const Result result =
        run([](const Tensor& x) { return softplus(x); }, {-20, -100, -1e7, -3e38, -kInf}, dtype);
    EXPECT_NEAR(result.y[0], 2.0611536e-9, dtype == DType::bf16 ? 1e-11 : 1e-16);
    EXPECT_NEAR(result.y[1], 0, 4e-44);
    EXPECT_EQ(Values(result.y.begin() + 2, result.y.end()), (Values{0, 0, 0}));
    for (const double y : result.y) EXPECT_FALSE(std::signbit(y)) << y;
    EXPECT_EQ(Values(result.dx.begin() + 2, result.dx.end()), (Values{0, 0, 0}));
  }
}

TEST_P(ActivationFaults, D062_SoftplusGradientBeyondTheOverflow) {
  for (const double threshold : {20.0, 200.0, kInf}) {
    for (const DType dtype : kDTypes) {
      const auto f = [&](const Tensor& x) { return softplus(x, 1, threshold); };
      EXPECT_EQ(run(f, {85, 88, 90, 99, kInf}, dtype, 2).dx, (Values{2, 2, 2, 2, 2}))
          << threshold << " " << to_string(dtype);
    }
  }
}

TEST_P(ActivationFaults, D063_SiluTails) {
  const Result f32 = run([](const Tensor& x) { return silu(x); }, {-kInf, -1e4, -100, 1e4, kInf});
  EXPECT_EQ(f32.y[0], 0);
  EXPECT_EQ(f32.y[1], 0);
  EXPECT_NEAR(f32.y[2], -3.72e-42, 1.1e-43);
  EXPECT_EQ(f32.y[3], 1e4);
  EXPECT_EQ(f32.y[4], kInf);
  // The other functions that fall to 0 have the same limit.
  for (const char* name : {"gelu", "gelu_tanh", "silu", "mish", "hardswish"}) {
    for (const DType dtype : kDTypes) {
      SCOPED_TRACE(concat(name, " ", to_string(dtype)));
      const auto f = [&](const Tensor& x) { return activate(x, parse_activation(name)); };
      const Result result = run(f, {-kInf, -6e4, 6e4, kInf, std::nan("")}, dtype);
      EXPECT_EQ(result.y[0], 0);
      EXPECT_EQ(result.y[1], 0);
      EXPECT_NEAR(result.y[2], 6e4, 200);  // as f16 and bf16 round it
      EXPECT_EQ(result.y[3], kInf);
      EXPECT_TRUE(std::isnan(result.y[4]));
      EXPECT_EQ(Values(result.dx.begin(), result.dx.begin() + 4), (Values{0, 0, 1, 1}));
    }
  }
  for (const char* name : {"gelu_tanh", "silu", "tanh"}) {
    for (const DType dtype : kDTypes) {
      SCOPED_TRACE(concat(name, " ", to_string(dtype)));
      const auto f = [&](const Tensor& x) { return activate(x, parse_activation(name)); };
      const Values y = run(f, {-0.0, 0.0}, dtype).y;
      EXPECT_TRUE(y[0] == 0 && std::signbit(y[0]));
      EXPECT_TRUE(y[1] == 0 && !std::signbit(y[1]));
    }
  }
  const Result f16 = run([](const Tensor& x) { return silu(x); }, {-12}, DType::f16);
  EXPECT_NEAR(f16.y[0], -7.373e-5, 3.1e-8);
}

TEST_P(ActivationFaults, D064_SiluGradientOfLargeInput) {
  const Values dx = run([](const Tensor& x) { return silu(x); }, {-100, -30, 0, 50}).dx;
  EXPECT_NEAR(dx[0], -3.68e-42, 1.1e-43);
  EXPECT_NEAR(dx[1], -2.713711e-12, 1e-17);
  EXPECT_EQ(dx[2], 0.5);
  EXPECT_EQ(dx[3], 1);
}

TEST_P(ActivationFaults, D065_SigmoidGradientOfLargeInput) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Values dx =
        run([](const Tensor& x) { return sigmoid(x); }, {-125, -20, 0, 20, 125}, dtype).dx;
    EXPECT_NEAR(dx[0], 0, 1e-44);
    EXPECT_NEAR(dx[1], 2.0611536e-9, 1e-15);
    EXPECT_EQ(dx[2], 0.25);
    EXPECT_NEAR(dx[3], 2.0611536e-9, 1e-15);
    EXPECT_NEAR(dx[4], 0, 1e-44);
  }
  // 1 / cosh² is the same family.
  for (const DType dtype : kDTypes) {
    const Values dx =
        run([](const Tensor& x) { return tanh(x); }, {-kInf, -6e4, 0, 6e4, kInf}, dtype).dx;
    EXPECT_EQ(dx, (Values{0, 0, 1, 0, 0})) << to_string(dtype);
  }
}

TEST_P(ActivationFaults, D066_GeluGradientInTheTail) {
  const Values xs{-3.7, -4, -6, -0.75};
  const Values want{-1.4638873e-03, -5.0364966e-04, -3.5469e-08, 7.7427826e-04};
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Values dx = run([](const Tensor& x) { return gelu(x); }, xs, dtype).dx;
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(dx[i], want[i], 1e-4 * std::abs(want[i]));
    EXPECT_NEAR(dx[3], want[3], 1e-6);
  }
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const char* approximate : {"none", "tanh"}) {
      const Values dx =
          run([&](const Tensor& x) { return gelu(x, approximate); }, {-3.7, -4, -5}, dtype).dx;
      for (const double value : dx) EXPECT_LT(value, 0) << to_string(dtype) << " " << approximate;
    }
  }
}

// relu's own values are in activation_test.cpp; the others pass NaN and cut what they cut, too.
TEST_P(ActivationFaults, D067_NanPassesThrough) {
  const Values xs{std::nan(""), -1, 2, -0.0, kInf};
  for (const DType dtype : kDTypes) {
    SCOPED_TRACE(to_string(dtype));
    const Result relu_result = run([](const Tensor& x) { return relu(x); }, xs, dtype);
    EXPECT_TRUE(std::isnan(relu_result.y[0]));
    EXPECT_EQ(Values(relu_result.y.begin() + 1, relu_result.y.end()), (Values{0, 2, 0, kInf}));
    EXPECT_EQ(Values(relu_result.dx.begin() + 1, relu_result.dx.end()), (Values{0, 1, 0, 1}));
    const Result leaky = run([](const Tensor& x) { return leaky_relu(x, 0.25); }, xs, dtype);
    EXPECT_TRUE(std::isnan(leaky.y[0]));
    EXPECT_EQ(Values(leaky.y.begin() + 1, leaky.y.end()), (Values{-0.25, 2, 0, kInf}));
    EXPECT_EQ(Values(leaky.dx.begin() + 1, leaky.dx.end()), (Values{0.25, 1, 0.25, 1}));
    for (const std::string& name : activation_names()) {
      const auto f = [&](const Tensor& x) { return activate(x, parse_activation(name)); };
      EXPECT_TRUE(std::isnan(run(f, {std::nan("")}, dtype).y[0])) << name;
    }
  }
}

// Long tensors have another launch than short ones, with the same results: here one more than a
// whole wave of blocks has, and an end that fills no pack.
TEST_P(ActivationFaults, LongTensorsHaveTheResultsOfShortOnes) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::string name : {"relu", "gelu_tanh"}) {
      SCOPED_TRACE(concat(name, " ", to_string(dtype)));
      const auto f = [&](const Tensor& x) { return activate(x, parse_activation(name)); };
      Values part;
      for (int i = 0; i < 1003; ++i) part.push_back((i * 37 % 1003 - 501) / 128.0);
      const Result want = run(f, part, dtype, 2);
      Values whole;
      for (int i = 0; i < (1 << 20) * (16 / size_of(dtype)) + 1027; ++i) {
        whole.push_back(part[static_cast<size_t>(i % 1003)]);
      }
      const Result got = run(f, whole, dtype, 2);
      size_t wrong = 0;
      for (size_t i = 0; i < whole.size(); ++i) {
        wrong += got.y[i] != want.y[i % 1003] || got.dx[i] != want.dx[i % 1003] ? 1 : 0;
      }
      EXPECT_EQ(wrong, 0u);
    }
  }
}

TEST_P(ActivationFaults, D106_EmptyTensors) {
  for (const std::string& name : activation_names()) {
    for (const Shape& shape : {Shape{0}, Shape{0, 3}, Shape{3, 0}}) {
      for (const DType dtype : kDTypes) {
        Tensor x = Tensor::empty(shape, {.dtype = dtype, .device = GetParam()});
        x.set_requires_grad(true);
        const Tensor y = activate(x, parse_activation(name));
        EXPECT_EQ(y.shape(), shape) << name;
        y.backward(Tensor::empty(shape, y.options()));
        EXPECT_EQ(x.grad().shape(), shape) << name;
      }
    }
  }
}

}  // namespace
}  // namespace gradus
