// How far each activation and its gradient are from the f64 formula, in units of the last place,
// over a dense sweep that takes in both tails: the bounds that docs/numerics.md states.
#include <algorithm>
#include <cmath>

#include "autograd/ops/activation.h"
#include "cpu/context.h"
#include "tests/support/compare.h"
#include "tests/support/each_device.h"
#include "tests/support/reference_activation.h"

namespace gradus {
namespace {

struct Bound {
  std::string name;
  double forward;   // ulp of the value, f32
  double backward;  // ulp of the gradient, f32; of max(gradient, `cancels`)
  double cancels;   // what two terms of the gradient are where they cancel; 0: they do not
  ref::ActivationParameters parameters = {};
};

const Bound kBounds[] = {
    {"relu", 0, 0, 0},
    {"relu6", 0, 0, 0},
    {"leaky_relu", 1, 1, 0, {.a = 0.01}},
    {"elu", 1, 1, 0, {.a = 1}},
    {"gelu", 3.5, 3, 0.25},
    {"gelu_tanh", 2, 6, 0.25},
    {"silu", 2, 6, 0.25},
    {"mish", 2, 8, 0.25},
    {"sigmoid", 1.5, 5, 0},
    {"tanh", 1, 5, 0},
    {"softplus", 2, 1.5, 0, {.a = 1, .b = 20}},
    {"hardswish", 2, 1, 0.25},
    {"hardsigmoid", 1, 1, 0},
};

// Every magnitude from subnormal to huge, and the range where the functions bend closely.
std::vector<double> sweep(DType dtype) {
  std::vector<double> xs{0.0, -0.0};
  for (double magnitude = 1e-40; magnitude < 1e38; magnitude *= 1.005) {
    xs.push_back(round_to(magnitude, dtype));
    xs.push_back(round_to(-magnitude, dtype));
  }
  constexpr double kIrrational = 0.00063661977236758134;
  for (double x = -110; x < 110; x += kIrrational) xs.push_back(round_to(x, dtype));
  for (double x = -2; x < 2; x += kIrrational / 20) xs.push_back(round_to(x, dtype));
  xs.push_back(round_to(-5.84286308, dtype));  // where sigmoid in f32 is worst
  return xs;
}

struct Worst {
  double ulps = 0, x = 0, got = 0, want = 0;
};

// For x in (zero_from, zero_to) an error is measured by `cancels` where `want` is smaller.
Worst worst_of(const std::vector<double>& xs, const std::vector<double>& got,
               const std::vector<double>& want, double cancels, double zero_from, double zero_to) {
  Worst worst;
  for (size_t i = 0; i < xs.size(); ++i) {
    const bool near_zero = xs[i] > zero_from && xs[i] < zero_to;
    const double scale = near_zero ? std::max(std::abs(want[i]), cancels) : want[i];
    const double error = std::abs(got[i] - want[i]) / ulp(scale, DType::f32);
    // Where e^x is subnormal, x·e^x has its few digits.
    if (std::abs(want[i]) < 0x1p-118) continue;
    if (error > worst.ulps) worst = {error, xs[i], got[i], want[i]};
  }
  return worst;
}

TEST(ActivationBounds, AreOfEveryActivation) {
  std::vector<std::string> bounded, all = activation_names();
  for (const Bound& bound : kBounds) bounded.push_back(bound.name);
  std::ranges::sort(bounded);
  std::ranges::sort(all);
  EXPECT_EQ(bounded, all);
}

class ActivationAccuracy : public test::EachDevice {};
GRADUS_ON_EACH_DEVICE(ActivationAccuracy);

TEST_P(ActivationAccuracy, UlpsInF32) {
  const std::vector<double> xs = sweep(DType::f32);
  const ref::Array x_array{{static_cast<int64_t>(xs.size())}, xs};
  const ref::Array ones = ref::full(x_array.shape, 1.0);
  // The baseline instruction set rounds a·b before adding c.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr bool fuses = false;  // such builds optimise less
#else
  const bool fuses = cpu().isa() != Isa::baseline;
#endif
  const double unfused = GetParam() == kCpu && !fuses ? 1 : 0;
  for (const Bound& bound : kBounds) {
    Tensor x = Tensor::from_vector(xs, x_array.shape, {.device = GetParam()});
    x.set_requires_grad(true);
    const Tensor y = activate(x, parse_activation(bound.name));
    y.backward(Tensor::ones(y.shape(), y.options()));
    const Worst forward =
        worst_of(xs, y.to_vector<double>(),
                 ref::activation(bound.name, x_array, bound.parameters).data, 0, 0, 0);
    const Worst backward =
        worst_of(xs, x.grad().to_vector<double>(),
                 ref::activation_backward(bound.name, x_array, ones, bound.parameters).data,
                 bound.cancels, -3, 0);
    for (const auto& [what, worst, limit] :
         {std::tuple("forward", forward, bound.forward), {"backward", backward, bound.backward}}) {
      EXPECT_LE(worst.ulps, limit == 0 ? 0 : limit + unfused)
          << bound.name << " " << what << " at " << worst.x << ": got " << worst.got << ", want "
          << worst.want;
    }
  }
}

TEST_P(ActivationAccuracy, RelativeInF64) {
  const std::vector<double> xs = sweep(DType::f64);
  const ref::Array x_array{{static_cast<int64_t>(xs.size())}, xs};
  const ref::Array ones = ref::full(x_array.shape, 1.0);
  for (const Bound& bound : kBounds) {
    Tensor x = Tensor::from_vector(xs, x_array.shape, {.dtype = DType::f64, .device = GetParam()});
    x.set_requires_grad(true);
    const Tensor y = activate(x, parse_activation(bound.name));
    y.backward(Tensor::ones(y.shape(), y.options()));
    const std::vector<double> want = ref::activation(bound.name, x_array, bound.parameters).data;
    const std::vector<double> want_dx =
        ref::activation_backward(bound.name, x_array, ones, bound.parameters).data;
    const std::vector<double> got = y.to_vector<double>(), dx = x.grad().to_vector<double>();
    double worst = 0, worst_dx = 0, at = 0, at_dx = 0;
    for (size_t i = 0; i < xs.size(); ++i) {
      const double error = std::abs(got[i] - want[i]) / std::max(std::abs(want[i]), 1e-300);
      const double scale = xs[i] > -3 && xs[i] < 0 ? bound.cancels : 1e-300;
      const double error_dx = std::abs(dx[i] - want_dx[i]) / std::max(std::abs(want_dx[i]), scale);
      if (error > worst) worst = error, at = xs[i];
      if (error_dx > worst_dx) worst_dx = error_dx, at_dx = xs[i];
    }
    EXPECT_LE(worst, 1e-15) << bound.name << " at " << at;
    EXPECT_LE(worst_dx, 2e-15) << bound.name << " backward at " << at_dx;
  }
}

}  // namespace
}  // namespace gradus
