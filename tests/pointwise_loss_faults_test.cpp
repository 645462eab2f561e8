// Known faults of losses, by family and meaning.
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/ops/pointwise_loss.h"
#include "autograd/ops/sum.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/gpu.h"

namespace gradus {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16};

Tensor leaf(const std::vector<double>& values, DType dtype, Device device) {
  return Tensor::from_vector(values, {static_cast<int64_t>(values.size())},
                             {.dtype = dtype, .device = device})
      .set_requires_grad(true);
}

struct Result {
  std::vector<double> y, dx;
};

// Per element, with an upstream gradient of 1.
template <class Loss>
Result run_each(const std::vector<double>& x_values, const std::vector<double>& t_values,
                DType dtype, Device device, Loss loss) {
  const Tensor x = leaf(x_values, dtype, device), t = leaf(t_values, dtype, device);
  const Tensor y = loss(x, t);
  sum(y).backward();
  return {y.to_vector<double>(), x.grad().to_vector<double>()};
}

// reduction none followed by sum(): the upstream gradient is one element with stride 0.
void broadcast_upstream(Device device) {
  for (const DType dtype : kDTypes) {
    for (const auto loss : {mse_loss, l1_loss}) {
      const std::vector<double> x{1, -2, 0.5, 4}, t{0.5, 1, 0.5, -1};
      const Tensor each = leaf(x, dtype, device), whole = leaf(x, dtype, device);
      sum(loss(each, leaf(t, dtype, device), Reduction::none)).backward();
      loss(whole, leaf(t, dtype, device), Reduction::sum).backward();
      EXPECT_EQ(each.grad().to_vector<double>(), whole.grad().to_vector<double>());
    }
  }
}
TEST(PointwiseLossFaults, D070_BroadcastUpstream) { broadcast_upstream(kCpu); }
TEST(PointwiseLossCudaFaults, D070_BroadcastUpstream) {
  GRADUS_SKIP_WITHOUT(kCuda);
  broadcast_upstream(kCuda);
}

// A probability of exactly 0 or 1 is a logit of -inf or inf: right ones cost 0, wrong ones inf, and
// nothing is NaN.
void certain_predictions(Device device) {
  for (const DType dtype : kDTypes) {
    const Result r =
        run_each({kInf, -kInf, 0, -kInf, kInf}, {1, 0, 1, 1, 0}, dtype, device,
                 [](const Tensor& x, const Tensor& t) {
                   return binary_cross_entropy_with_logits(x, t, {.reduction = Reduction::none});
                 });
    EXPECT_EQ(r.y[0], 0);
    EXPECT_EQ(r.y[1], 0);
    EXPECT_NEAR(r.y[2], 0.6931472, 5e-8);
    EXPECT_EQ(r.y[3], kInf);
    EXPECT_EQ(r.y[4], kInf);
    EXPECT_EQ(r.dx, (std::vector<double>{0, 0, -0.5, -1, 1})) << to_string(dtype);
    const Result far = run_each(
        {100, -100, 1e4, -1e4}, {0, 1, 1, 0}, dtype, device, [](const Tensor& x, const Tensor& t) {
          return binary_cross_entropy_with_logits(x, t, {.reduction = Reduction::none});
        });
    EXPECT_EQ(far.y[0], 100);
    EXPECT_EQ(far.y[1], 100);
    EXPECT_EQ(far.y[2], 0);
    EXPECT_EQ(far.y[3], 0);
    for (const double d : far.dx) EXPECT_TRUE(std::isfinite(d));
  }
}
TEST(PointwiseLossFaults, D071_CertainPredictions) { certain_predictions(kCpu); }
TEST(PointwiseLossCudaFaults, D071_CertainPredictions) {
  GRADUS_SKIP_WITHOUT(kCuda);
  certain_predictions(kCuda);
}

// beta 0 is L1, the gradient 0 where input and target are equal.
void beta_zero(Device device) {
  for (const DType dtype : kDTypes) {
    const auto smooth = [](const Tensor& x, const Tensor& t) {
      return smooth_l1_loss(x, t, Reduction::sum, 0.0);
    };
    const Result equal = run_each({1, 2}, {1, 2}, dtype, device, smooth);
    EXPECT_EQ(equal.y, std::vector<double>{0});
    EXPECT_EQ(equal.dx, (std::vector<double>{0, 0}));
    const double tiny = dtype == DType::f16 ? 6e-8 : 1e-8;
    const Result r = run_each({tiny, -1, 0}, {0, 0, 0}, dtype, device, smooth);
    EXPECT_EQ(r.dx, (std::vector<double>{1, -1, 0})) << to_string(dtype);
    for (const double small : {1e-39, 5e-324}) {  // of which the reciprocal may be infinite
      const Result same =
          run_each({tiny, -1, 0}, {0, 0, 0}, dtype, device, [&](const Tensor& x, const Tensor& t) {
            return smooth_l1_loss(x, t, Reduction::sum, small);
          });
      EXPECT_EQ(same.dx, r.dx) << to_string(dtype);
    }
    const Result l1 =
        run_each({tiny, -1, 0}, {0, 0, 0}, dtype, device,
                 [](const Tensor& x, const Tensor& t) { return l1_loss(x, t, Reduction::sum); });
    EXPECT_EQ(r.y, l1.y);
    EXPECT_EQ(r.dx, l1.dx);
  }
}
TEST(PointwiseLossFaults, D072_SmoothL1WithBetaZero) { beta_zero(kCpu); }
TEST(PointwiseLossCudaFaults, D072_SmoothL1WithBetaZero) {
  GRADUS_SKIP_WITHOUT(kCuda);
  beta_zero(kCuda);
}

void beta_is_continuous(Device device) {
  for (const DType dtype : kDTypes) {
    const Result r = run_each({0.25, 0.5, 2, -2}, {0, 0, 0, 0}, dtype, device,
                              [](const Tensor& x, const Tensor& t) {
                                return smooth_l1_loss(x, t, Reduction::none, 0.5);
                              });
    EXPECT_EQ(r.y, (std::vector<double>{0.0625, 0.25, 1.75, 1.75})) << to_string(dtype);
    EXPECT_EQ(r.dx, (std::vector<double>{0.5, 1, 1, -1})) << to_string(dtype);
  }
}
TEST(PointwiseLossFaults, D073_SmoothL1BranchesMeet) { beta_is_continuous(kCpu); }
TEST(PointwiseLossCudaFaults, D073_SmoothL1BranchesMeet) {
  GRADUS_SKIP_WITHOUT(kCuda);
  beta_is_continuous(kCuda);
}

// Empty tensors in every reduction, forward and backward, and a launch that works afterwards.
void empty_tensors(Device device) {
  for (const Shape& shape : {Shape{0}, Shape{0, 3}, Shape{3, 0}}) {
    for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
      for (int kind = 0; kind < 4; ++kind) {
        const Tensor x = Tensor::ones(shape, {.device = device}).set_requires_grad(true);
        const Tensor t = Tensor::ones(shape, {.device = device}).set_requires_grad(true);
        const Tensor y = kind == 0   ? mse_loss(x, t, reduction)
                         : kind == 1 ? l1_loss(x, t, reduction)
                         : kind == 2
                             ? smooth_l1_loss(x, t, reduction)
                             : binary_cross_entropy_with_logits(x, t, {.reduction = reduction});
        EXPECT_EQ(y.shape(), reduction == Reduction::none ? shape : Shape{});
        for (const double value : y.to_vector<double>()) {
          EXPECT_TRUE(reduction == Reduction::mean ? std::isnan(value) : value == 0);
        }
        y.backward(Tensor::ones(y.shape(), {.device = device}));
        EXPECT_EQ(x.grad().shape(), shape);
        EXPECT_EQ(t.grad().shape(), shape);
      }
    }
  }
  EXPECT_EQ(mse_loss(leaf({3}, DType::f32, device), leaf({1}, DType::f32, device)).item<float>(),
            4);
}
TEST(PointwiseLossFaults, D106_EmptyTensors) { empty_tensors(kCpu); }
TEST(PointwiseLossCudaFaults, D106_EmptyTensors) {
  GRADUS_SKIP_WITHOUT(kCuda);
  empty_tensors(kCuda);
}

// Indices beyond 2^31: the sum counts every element, and the last one has its gradient.
TEST(PointwiseLossCudaFaults, SlowD105_MoreThan2To31Elements) {
  GRADUS_SKIP_WITHOUT(kCuda);
  const int64_t count = (int64_t{1} << 31) + 24;
  const TensorOptions options{.dtype = DType::bf16, .device = kCuda};
  Tensor x = Tensor::ones({count}, options);
  const Tensor t = Tensor::zeros({count}, options);
  x.slice(0, count - 3, count).fill_(2);
  x.set_requires_grad(true);
  const Tensor y = mse_loss(x, t, Reduction::sum);
  EXPECT_EQ(y.item<double>(), static_cast<double>(static_cast<float>(count + 9)));
  y.backward();
  const std::vector<double> last = x.grad().slice(0, count - 4, count).to_vector<double>();
  EXPECT_EQ(last, (std::vector<double>{2, 4, 4, 4}));
}

// The second backward of a freed graph is an error; a retained one doubles the gradients exactly.
TEST(PointwiseLossFaults, D080_SecondBackward) {
  const auto losses = {mse_loss, l1_loss};
  for (const auto loss : losses) {
    const Tensor x = leaf({1, 2.5}, DType::f32, kCpu), t = leaf({0.5, 3}, DType::f32, kCpu);
    const Tensor y = loss(x, t, Reduction::mean);
    y.backward({}, true);
    const std::vector<double> once = x.grad().to_vector<double>();
    y.backward();
    const std::vector<double> twice = x.grad().to_vector<double>();
    for (size_t i = 0; i < once.size(); ++i) EXPECT_EQ(twice[i], 2 * once[i]);
    EXPECT_THROW(y.backward(), Error);
  }
}

}  // namespace
}  // namespace gradus
