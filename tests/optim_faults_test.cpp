// Known faults of optimizers, by family and meaning.
#include <cmath>
#include <limits>

#include "nn/optim/adam.h"
#include "nn/optim/muon.h"
#include "nn/optim/sgd.h"
#include "tests/support/expect_error.h"
#include "tests/support/optim.h"

namespace gradus::nn {
namespace {

using test::parameter;
using test::set_gradient;

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16};

// Runs f on the CPU, and in the twin named Cuda on the GPU.
#define GRADUS_FAULT(name, f)          \
  TEST(OptimFaults, name) { f(kCpu); } \
  TEST(OptimCudaFaults, name) {        \
    GRADUS_SKIP_WITHOUT(kCuda);        \
    f(kCuda);                          \
  }

std::vector<std::unique_ptr<Optimizer>> adams(const Tensor& w, double lr, double decay) {
  std::vector<std::unique_ptr<Optimizer>> all;
  all.push_back(
      std::make_unique<Adam>(std::vector{w}, AdamOptions{.lr = lr, .weight_decay = decay}));
  all.push_back(
      std::make_unique<AdamW>(std::vector{w}, AdamWOptions{.lr = lr, .weight_decay = decay}));
  return all;
}

// A gradient of 0 leaves 16-bit weights as they are: eps 1e-8 and the moments are f32.
void zero_gradient(Device device) {
  for (const DType dtype : kDTypes) {
    for (const size_t kind : {0, 1}) {
      Tensor w = parameter({1, -2, 0.5}, dtype, device);
      const auto optimizer = std::move(adams(w, 1e-3, 0)[kind]);
      for (int step = 0; step < 3; ++step) {
        set_gradient(w, {0, 0, 0});
        optimizer->step();
      }
      EXPECT_EQ(w.to_vector<double>(), (std::vector<double>{1, -2, 0.5})) << to_string(dtype);
      for (const NamedTensor& entry : optimizer->state()) {
        if (!entry.name.starts_with("exp_avg")) continue;
        EXPECT_EQ(entry.tensor.dtype(), acc_dtype(dtype));
      }
    }
  }
}
GRADUS_FAULT(D082_ZeroGradientIn16Bits, zero_gradient)

// Only f64 holds these eps, and 1/eps.
void zero_gradient_and_tiny_eps(Device device) {
  for (const DType dtype : kDTypes) {
    const std::vector<double> values{1, -2, 0.5, 3};
    const auto expect_unchanged = [&](const char* name, auto make) {
      Tensor w = parameter(values, {2, 2}, dtype, device);
      auto optimizer = make(w);
      set_gradient(w, {0, 0, 0, 0});
      optimizer.step();
      EXPECT_EQ(w.to_vector<double>(), values) << name << " " << to_string(dtype);
    };
    expect_unchanged("Adam", [](Tensor w) { return Adam({w}, {.eps = 1e-46}); });
    expect_unchanged("AdamW",
                     [](Tensor w) { return AdamW({w}, {.eps = 1e-46, .weight_decay = 0}); });
    expect_unchanged("Muon", [](Tensor w) { return Muon({w}, {.weight_decay = 0, .eps = 1e-40}); });
  }
}
GRADUS_FAULT(D082_ZeroGradientAndTinyEps, zero_gradient_and_tiny_eps)

double first_step(Device device, size_t kind, double gradient) {
  Tensor w = parameter({0}, DType::f64, device);
  const auto optimizer = std::move(adams(w, 1e-3, 0)[kind]);
  set_gradient(w, {gradient});
  optimizer->step();
  return -w.item<double>();
}

void eps_after_bias_correction(Device device) {
  for (const size_t kind : {0, 1}) EXPECT_NEAR(first_step(device, kind, 1e-8), 5e-4, 5e-12);
}
GRADUS_FAULT(D083_EpsIsAddedAfterTheBiasCorrection, eps_after_bias_correction)

void eps_outside_the_root(Device device) {
  for (const size_t kind : {0, 1}) EXPECT_NEAR(first_step(device, kind, 1e-4), 0.0009999, 5e-11);
}
GRADUS_FAULT(D084_EpsIsOutsideTheRoot, eps_outside_the_root)

// And the eps given is the one used.
void eps_is_handed_on(Device device) {
  Tensor w = parameter({0}, DType::f64, device);
  Adam optimizer({w}, {.lr = 1, .eps = 3});
  set_gradient(w, {1});
  optimizer.step();
  EXPECT_NEAR(w.item<double>(), -0.25, 1e-12);
}
GRADUS_FAULT(D008_EpsIsHandedOn, eps_is_handed_on)

void decoupled_decay(Device device) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const double want[] = {0.9, 0.999};
    for (const size_t kind : {0, 1}) {
      Tensor w = parameter({1}, dtype, device);
      const auto optimizer = std::move(adams(w, 0.1, 0.01)[kind]);
      set_gradient(w, {0});
      optimizer->step();
      EXPECT_NEAR(w.item<double>(), want[kind], 1e-6);
      for (const NamedTensor& entry : optimizer->state()) {
        if (!entry.name.starts_with("exp_avg")) continue;
        EXPECT_EQ(entry.tensor.item<double>() != 0, kind == 0) << entry.name;
      }
    }
    Tensor matrix = parameter({1, 0, 0, 1}, {2, 2}, dtype, device);
    Muon muon({matrix}, {.lr = 0.1, .weight_decay = 0.01});
    set_gradient(matrix, {0, 0, 0, 0});
    muon.step();
    EXPECT_NEAR(matrix.to_vector<double>()[0], 0.999, 1e-6);
    EXPECT_EQ(muon.state()[3].tensor.to_vector<double>(), (std::vector<double>{0, 0, 0, 0}));
  }
}
GRADUS_FAULT(D085_DecoupledDecayIsNoPartOfTheGradient, decoupled_decay)

// Such as a mask among the parameters: what is infinite stays so where no decay acts through the
// gradient, and the moments stay numbers.
void infinite_parameters(Device device) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  for (const DType dtype : kDTypes) {
    const auto expect_infinite = [&](const char* name, auto make) {
      Tensor w = parameter({inf, -inf}, dtype, device);
      auto optimizer = make(w);
      set_gradient(w, {0, 1});
      optimizer.step();
      EXPECT_EQ(w.to_vector<double>(), (std::vector{inf, -inf})) << name << " " << to_string(dtype);
      for (const NamedTensor& entry : optimizer.state()) {
        for (const double value : entry.tensor.to_vector<double>())
          EXPECT_TRUE(std::isfinite(value)) << name << " " << entry.name;
      }
    };
    expect_infinite("SGD", [](Tensor w) { return SGD({w}, {}); });
    expect_infinite("momentum", [](Tensor w) { return SGD({w}, {.momentum = 0.9}); });
    expect_infinite("Adam", [](Tensor w) { return Adam({w}, {}); });
    expect_infinite("AdamW", [](Tensor w) { return AdamW({w}, {}); });
  }
}
GRADUS_FAULT(InfiniteParametersStay, infinite_parameters)

TEST(OptimFaults, SharedMemoryIsRefused) {
  const Tensor w = Tensor::ones({4, 3});
  const auto part = [&](int64_t begin, int64_t end) {
    return w.slice(0, begin, end).detach().set_requires_grad(true);
  };
  EXPECT_NO_THROW(SGD(std::vector{part(0, 2), part(2, 4)}, {}));
  EXPECT_ERROR(SGD(std::vector{part(0, 2), part(1, 4)}, {}), ErrorCode::invalid_argument,
               "share memory");
}

// w = 0.9, 0.71, 0.439, saved and loaded after step 2 or not.
void momentum_is_kept(Device device) {
  for (const bool breaks : {false, true}) {
    Tensor w = parameter({1}, DType::f64, device);
    const SGDOptions options{.lr = 0.1, .momentum = 0.9};
    auto optimizer = std::make_unique<SGD>(std::vector{w}, options);
    const double want[] = {0.9, 0.71, 0.439};
    for (int step = 0; step < 3; ++step) {
      if (breaks && step == 2) {
        auto fresh = std::make_unique<SGD>(std::vector{w}, options);
        fresh->load_state(optimizer->state());
        optimizer = std::move(fresh);
      }
      set_gradient(w, {1});
      optimizer->step();
      EXPECT_NEAR(w.item<double>(), want[step], 1e-15);
    }
  }
}
GRADUS_FAULT(D086_MomentumIsKept, momentum_is_kept)

}  // namespace
}  // namespace gradus::nn
