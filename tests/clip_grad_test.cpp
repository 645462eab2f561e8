#include "nn/optim/clip_grad.h"

#include <cmath>

#include "core/launch.h"
#include "core/trace.h"
#include "cpu/context.h"
#include "nn/capture.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/expect_error.h"
#include "tests/support/optim.h"

namespace gradus::nn {
namespace {

using test::parameter;
using test::set_gradient;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16};

class ClipGradTest : public test::EachDevice {};
GRADUS_ON_EACH_DEVICE(ClipGradTest);

// Many tensors of all dtypes at once, some unaligned: the norm of all of them together, and each
// gradient scaled by the same factor.
TEST_P(ClipGradTest, ManyTensorsOfEveryDtype) {
  for (const double type : {1.0, 2.0, kInf}) {
    std::vector<Tensor> params;
    std::vector<std::vector<double>> before;
    double total = 0;
    for (int i = 0; i < 300; ++i) {
      const DType dtype = kDTypes[i % 4];
      const int64_t count = i == 7 ? 40'000 : i % 7 == 0 ? 1023 + i % 3 : i % 50;
      Tensor p = parameter(std::vector<double>(static_cast<size_t>(count), 1), dtype, GetParam());
      std::vector<double> values;
      for (int64_t j = 0; j < count; ++j) {
        values.push_back(static_cast<double>((i + 3 * j) % 17 - 8) / 4);
        const double size = std::abs(values.back());
        total = type == 1 ? total + size : type == 2 ? total + size * size : std::max(total, size);
      }
      if (count > 1 && i % 2 == 1) {  // a gradient that begins within its buffer
        std::vector<double> padded{0};
        padded.insert(padded.end(), values.begin(), values.end());
        const Tensor whole =
            Tensor::from_vector(padded, {count + 1}, {.dtype = dtype, .device = GetParam()});
        p.set_grad(whole.slice(0, 1, count + 1));
      } else {
        set_gradient(p, values);
      }
      params.push_back(p);
      before.push_back(values);
    }
    const double want = type == 2 ? std::sqrt(total) : total;
    const Tensor norm = clip_grad_norm_(params, 0.75, type);
    EXPECT_EQ(norm.dtype(), DType::f64);
    EXPECT_EQ(norm.device(), GetParam());
    EXPECT_NEAR(norm.item<double>(), want, 1e-12 * want);
    const double scale = 0.75 / (want + 1e-6);
    for (size_t i = 0; i < params.size(); ++i) {
      for (double& value : before[i]) value *= scale;
      EXPECT_TRUE(agrees(params[i].grad().to_vector<double>(), before[i], params[i].dtype(), 0));
    }
    EXPECT_NEAR(clip_grad_norm_(params, kInf, type).item<double>(), 0.75, 1e-2);
  }
}

TEST_P(ClipGradTest, SmallNormsAreLeftAlone) {
  for (const DType dtype : kDTypes) {
    Tensor a = parameter({1, 2}, dtype, GetParam()), b = parameter({1}, dtype, GetParam());
    set_gradient(a, {3, 0});
    set_gradient(b, {-4});
    EXPECT_EQ(clip_grad_norm_({a, b}, 6).item<double>(), 5);
    EXPECT_EQ(a.grad().to_vector<double>(), (std::vector<double>{3, 0}));
    EXPECT_EQ(b.grad().to_vector<double>(), (std::vector<double>{-4}));
    const uint64_t version = a.grad().storage()->version();
    EXPECT_EQ(clip_grad_norm_({a, b}, 4).item<double>(), 5);  // a little too long
    EXPECT_NEAR(a.grad().to_vector<double>()[0], 2.4, 0.01);
    EXPECT_EQ(a.grad().storage()->version(), version + 1);
    EXPECT_NEAR(clip_grad_norm_({a, b}, 1).item<double>(), 4, 0.02);
    EXPECT_NEAR(a.grad().to_vector<double>()[0], 0.6, 0.01);
  }
}

// The norm of f16 gradients whose squares f16 cannot hold, and of f32 ones whose squares f32
// cannot.
TEST_P(ClipGradTest, SquaresDoNotOverflow) {
  Tensor half = parameter({1, 1}, DType::f16, GetParam());
  set_gradient(half, {30000, 40000});
  EXPECT_EQ(clip_grad_norm_({half}, 1).item<double>(), 50000);
  EXPECT_NEAR(half.grad().to_vector<double>()[1], 0.8, 1e-3);
  Tensor single = parameter({1, 1}, DType::f32, GetParam());
  set_gradient(single, {3e30, 4e30});
  EXPECT_NEAR(clip_grad_norm_({single}, 1).item<double>(), 5e30, 1e24);
  EXPECT_NEAR(single.grad().to_vector<double>()[1], 0.8, 1e-6);
}

TEST_P(ClipGradTest, ValuesThatAreNotFinite) {
  for (const double type : {1.0, 2.0, kInf}) {
    Tensor a = parameter({1, 1, 1}, DType::f32, GetParam());
    set_gradient(a, {1, kNaN, 2});
    EXPECT_TRUE(std::isnan(clip_grad_norm_({a}, 1, type).item<double>()));
    for (const double value : a.grad().to_vector<double>()) EXPECT_TRUE(std::isnan(value));
    set_gradient(a, {1, -kInf, 2});
    EXPECT_EQ(clip_grad_norm_({a}, 1, type).item<double>(), kInf);
    EXPECT_EQ(a.grad().to_vector<double>()[0], 0);
    EXPECT_TRUE(std::isnan(a.grad().to_vector<double>()[1]));
  }
  Tensor b = parameter({1, 1, 1}, DType::bf16, GetParam());
  set_gradient(b, {kInf, kNaN, -kInf});
  clip_grad_value_({b}, 0.5);
  const std::vector<double> got = b.grad().to_vector<double>();
  EXPECT_EQ(got[0], 0.5);
  EXPECT_TRUE(std::isnan(got[1]));
  EXPECT_EQ(got[2], -0.5);
}

TEST_P(ClipGradTest, EachValueByItself) {
  for (const DType dtype : kDTypes) {
    Tensor a = parameter({1, 1, 1, 1, 1}, dtype, GetParam()),
           none = parameter({}, dtype, GetParam());
    set_gradient(a, {-3, -0.5, 0, 0.25, 7});
    set_gradient(none, {});
    const uint64_t version = a.grad().storage()->version();
    clip_grad_value_({a, none}, 0.5);
    EXPECT_EQ(a.grad().storage()->version(), version + 1);
    EXPECT_EQ(a.grad().to_vector<double>(), (std::vector<double>{-0.5, -0.5, 0, 0.25, 0.5}));
  }
}

// A gradient that repeats one element becomes one of its own.
TEST_P(ClipGradTest, RepeatedGradients) {
  Tensor a = parameter({1, 2, 3, 4}, DType::f32, GetParam());
  a.set_grad(Tensor::ones({1}, {.device = GetParam()}).expand({4}));
  EXPECT_EQ(clip_grad_norm_({a}, 1).item<double>(), 2);
  for (const double value : a.grad().to_vector<double>()) EXPECT_NEAR(value, 0.5, 1e-6);
}

// One gradient that was set for two parameters is scaled once for each; a parameter that two layers
// share may be listed twice.
TEST_P(ClipGradTest, SharedGradientsAndParameters) {
  Tensor a = parameter({1, 2}, DType::f32, GetParam()),
         b = parameter({3, 4}, DType::f32, GetParam());
  const Tensor grad = Tensor::full({2}, 2.0, {.device = GetParam()});
  a.set_grad(grad), b.set_grad(grad);
  EXPECT_EQ(clip_grad_norm_({a, b, a}, 1).item<double>(), 4);
  for (const Tensor& p : {a, b}) {
    for (const double value : p.grad().to_vector<double>()) EXPECT_NEAR(value, 0.5, 1e-6);
  }
  clip_grad_value_({a, a}, 0.25);
  EXPECT_EQ(a.grad().to_vector<double>(), (std::vector<double>{0.25, 0.25}));
}

TEST(ClipGrad, GradientsInOneWrappedMemory) {
  std::vector<float> memory{3, 4};
  Tensor a = Tensor::zeros({2}), b = Tensor::zeros({2});
  a.set_grad(Tensor::wrap(memory.data(), {2})), b.set_grad(Tensor::wrap(memory.data(), {2}));
  const Tensor norm = clip_grad_norm_({a, b}, 1);  // sqrt(2)·5
  EXPECT_DOUBLE_EQ(norm.item<double>(), std::sqrt(50.0));
  for (const Tensor& p : {a, b}) {
    EXPECT_NEAR(p.grad().to_vector<double>()[0], 3 / std::sqrt(50.0), 1e-6);
    EXPECT_NEAR(p.grad().to_vector<double>()[1], 4 / std::sqrt(50.0), 1e-6);
  }
}

TEST_P(ClipGradTest, AnInfiniteMaximumOnlyMeasures) {
  Tensor p = parameter({0, 0}, DType::f32, GetParam());
  for (const double value : {2.0, static_cast<double>(INFINITY)}) {
    set_gradient(p, {1, value});
    EXPECT_EQ(clip_grad_norm_({p}, INFINITY, 1).item<double>(), 1 + value);
    EXPECT_EQ(p.grad().to_vector<double>(), (std::vector<double>{1, value}));
  }
}

TEST_P(ClipGradTest, ParametersWithoutGradients) {
  Tensor a = parameter({1}, DType::f32, GetParam()), b = parameter({1}, DType::f32, GetParam());
  EXPECT_EQ(clip_grad_norm_({a, b}, 1).item<double>(), 0);
  clip_grad_value_({a, b}, 1);
  set_gradient(b, {2});
  EXPECT_EQ(clip_grad_norm_({a, b}, 1).item<double>(), 2);
  EXPECT_FALSE(a.grad().defined());
}

// One launch for all tensors, and no wait: the norm stays on the device while a graph is captured.
TEST_P(ClipGradTest, OneLaunchAndReplay) {
  Tensor a = parameter({1, 1}, DType::f32, GetParam()), b = parameter({1}, DType::f32, GetParam());
  Tensor seen = Tensor::zeros({}, {.dtype = DType::f64, .device = GetParam()});
  set_gradient(a, {300, 0});
  set_gradient(b, {400});
  {
    const Trace trace;
    clip_grad_norm_({a, b}, 1000);
    EXPECT_EQ(trace.records().size(), 1u);
  }
  CapturedStep step(GetParam(), [&] {
    seen.copy_(clip_grad_norm_({a, b}, 50));
    a.grad().detach().mul_(2);
    b.grad().detach().mul_(2);
  });
  for (int i = 0; i < 8; ++i) step.run();
  EXPECT_NEAR(seen.item<double>(), 100, 1e-3);
  EXPECT_NEAR(a.grad().to_vector<double>()[0], 60, 1e-3);
}

TEST_P(ClipGradTest, SameBitsAgain) {
  std::vector<double> values;
  for (int i = 0; i < 100001; ++i) values.push_back(std::sin(i));
  double first = 0;
  std::vector<double> first_clipped;
  const int before = cpu().threads();
  for (const int threads : {before, before, 1, 2, 3}) {
    cpu().set_threads(threads);
    Tensor a = parameter(std::vector<double>(values.size(), 0), DType::f32, GetParam());
    set_gradient(a, values);
    const double norm = clip_grad_norm_({a}, 1).item<double>();
    const std::vector<double> clipped = a.grad().to_vector<double>();
    if (first_clipped.empty()) first = norm, first_clipped = clipped;
    EXPECT_EQ(norm, first);
    EXPECT_EQ(clipped, first_clipped);
  }
  cpu().set_threads(before);
}

TEST(ClipGrad, Errors) {
  const auto invalid = ErrorCode::invalid_argument;
  const Tensor a = parameter({1}, DType::f32, kCpu);
  EXPECT_ERROR(clip_grad_norm_({a}, -1), invalid, "clip_grad_norm_: max_norm must be 0 or more");
  EXPECT_ERROR(clip_grad_norm_({a}, kNaN), invalid, "max_norm");
  EXPECT_ERROR(clip_grad_norm_({a}, 1, 3), invalid, "norm_type must be 1, 2 or infinity, got 3");
  EXPECT_ERROR(clip_grad_norm_({}, 1), invalid, "at least one parameter");
  EXPECT_ERROR(clip_grad_value_({a}, -1), invalid, "clip_value must be 0 or more");
}

}  // namespace
}  // namespace gradus::nn
