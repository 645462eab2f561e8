#include "autograd/ops/dropout.h"

#include <cmath>
#include <limits>

#include "nn/capture.h"
#include "nn/dropout.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/expect_error.h"
#include "tests/support/gpu.h"
#include "tests/support/op_modes.h"

namespace gradus {
namespace {

GRADUS_TEST_OP_CASES(dropout);

TEST(Dropout, KeepsTheMean) {
  Generator generator(kCpu, 1);
  const Tensor x = Tensor::ones({200000});
  for (const double p : {0.1, 0.5, 0.8}) {
    const std::vector<double> y = dropout(x, p, true, &generator).to_vector<double>();
    int64_t kept = 0;
    for (const double value : y) {
      ASSERT_TRUE(value == 0 || value == static_cast<float>(1 / (1 - p)));
      kept += value != 0;
    }
    EXPECT_NEAR(static_cast<double>(kept) / 200000, 1 - p, 0.005);
  }
  EXPECT_EQ(generator.state().calls, 3);
}

TEST(Dropout, CallsDiffer) {
  Generator generator(kCpu, 1);
  const Tensor x = Tensor::ones({1000});
  const std::vector<float> first = dropout(x, 0.5, true, &generator).to_vector<float>();
  EXPECT_NE(dropout(x, 0.5, true, &generator).to_vector<float>(), first);
  generator.manual_seed(1);
  EXPECT_EQ(dropout(x, 0.5, true, &generator).to_vector<float>(), first);
  manual_seed(1);
  EXPECT_EQ(dropout(x, 0.5).to_vector<float>(), first);
  manual_seed(0);
}

TEST(Dropout, EvaluationAndZeroAreTheIdentity) {
  Generator generator(kCpu, 1);
  const Tensor x = Tensor::ones({10}).set_requires_grad(true);
  for (const Tensor& y : {dropout(x, 0.5, false, &generator), dropout(x, 0, true, &generator)}) {
    EXPECT_EQ(y.storage(), x.storage());
    EXPECT_EQ(y.to_vector<float>(), x.to_vector<float>());
  }
  EXPECT_EQ(generator.state().calls, 0);
}

void expect_one_drops_all(Device device) {
  Generator generator(device, 1);
  const TensorOptions options{.device = device};
  const Tensor x = Tensor::from_vector(std::vector<float>{1, -2, 3e38f}, {3}, options);
  Tensor leaf = x.clone().set_requires_grad(true);
  const Tensor y = dropout(leaf, 1.0, true, &generator);
  EXPECT_EQ(y.to_vector<float>(), (std::vector<float>{0, 0, 0}));
  y.backward(Tensor::full({3}, 5.0, options));
  EXPECT_EQ(leaf.grad().to_vector<float>(), (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(dropout(x, 1.0, false, &generator).to_vector<float>(), x.to_vector<float>());
  EXPECT_EQ(nn::Dropout(1.0)(x).to_vector<float>(), (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(generator.state().calls, 0);
}

TEST(Dropout, OneDropsAll) { expect_one_drops_all(kCpu); }
TEST(DropoutCuda, OneDropsAll) {
  GRADUS_SKIP_WITHOUT(kCuda);
  expect_one_drops_all(kCuda);
}

// As in any product: what is dropped is 0 times x.
TEST(Dropout, NonFiniteValuesShow) {
  Generator generator(kCpu, 1);
  const double inf = std::numeric_limits<double>::infinity();
  for (const double value :
       dropout(Tensor::full({100}, NAN), 0.5, true, &generator).to_vector<double>()) {
    EXPECT_TRUE(std::isnan(value));
  }
  for (const double value :
       dropout(Tensor::full({100}, inf), 0.5, true, &generator).to_vector<double>()) {
    EXPECT_TRUE(std::isnan(value) || value == inf);
  }
}

TEST(Dropout, StridedInputAndUpstream) {
  Generator a(kCpu, 3), b(kCpu, 3);
  const Tensor x = randn({6, 5}).transpose(0, 1).set_requires_grad(true);
  const Tensor same = x.detach().contiguous().set_requires_grad(true);
  const Tensor dy = randn({6, 5}).transpose(0, 1);
  const Tensor y = dropout(x, 0.5, true, &a), want = dropout(same, 0.5, true, &b);
  EXPECT_EQ(y.to_vector<float>(), want.to_vector<float>());
  y.backward(dy);
  want.backward(dy);
  EXPECT_EQ(x.grad().to_vector<float>(), same.grad().to_vector<float>());
}

// Wrong backward passes that the comparison of the cases must reject, in every dtype.
TEST(Dropout, MutantsAreRejected) {
  const struct {
    const char* name;
    double (*gradient)(double dy, bool keep, bool next, double p);
  } mutants[] = {
      {"not scaled", [](double dy, bool keep, bool, double) { return keep ? dy : 0; }},
      {"no mask", [](double dy, bool, bool, double p) { return dy / (1 - p); }},
      {"divided by p", [](double dy, bool keep, bool, double p) { return keep ? dy / p : 0; }},
      {"inverted mask",
       [](double dy, bool keep, bool, double p) { return keep ? 0 : dy / (1 - p); }},
      {"mask one off",
       [](double dy, bool, bool next, double p) { return next ? dy / (1 - p) : 0; }},
  };
  for (const OpCase& op_case : test_cases_of("dropout")) {
    if (op_case.name != "odd") continue;
    const double p = 0.3;
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      const std::vector<ref::Array> in{ref::full({3, 5, 7}, 1.0)};
      const std::vector<double> keep = op_case.reference(in).data;
      const ref::Array dy = draw_upstream({3, 5, 7}, dtype, 2);
      const std::vector<double> want = op_case.reference_backward(in, dy)[0].data;
      for (const auto& mutant : mutants) {
        std::vector<double> dx;
        for (size_t i = 0; i < keep.size(); ++i) {
          const bool next = keep[(i + 1) % keep.size()] != 0;
          dx.push_back(mutant.gradient(dy.data[i], keep[i] != 0, next, p));
        }
        EXPECT_FALSE(compare(dx, want, dtype, op_case.reduction))
            << mutant.name << " in " << to_string(dtype);
      }
    }
  }
}

// Every run of a step drops others, on CUDA in replays of one recording, too; the same as the CPU.
void expect_steps_drop_anew(Device device) {
  Generator generator(device, 5), host(kCpu, 5);
  const Tensor x = Tensor::ones({1001}, {.device = device}), plain = Tensor::ones({1001});
  Tensor y = Tensor::zeros({1001}, {.device = device});
  nn::CapturedStep step(device, [&] { y.copy_(dropout(x, 0.4, true, &generator)); });
  for (int i = 0; i < 6; ++i) {
    step.run();
    EXPECT_EQ(y.to_vector<float>(), dropout(plain, 0.4, true, &host).to_vector<float>()) << i;
  }
  EXPECT_EQ(step.captured(), device != kCpu);
}

TEST(Dropout, StepsDropAnew) { expect_steps_drop_anew(kCpu); }
TEST(DropoutCuda, ReplayedStepsDropAnew) {
  GRADUS_SKIP_WITHOUT(kCuda);
  expect_steps_drop_anew(kCuda);
}

TEST(Dropout, EmptyTensor) {
  Generator generator(kCpu, 1);
  const Tensor x = Tensor::zeros({0, 3}).set_requires_grad(true);
  const Tensor y = dropout(x, 0.5, true, &generator);
  EXPECT_EQ(y.shape(), (Shape{0, 3}));
  y.backward(Tensor::zeros({0, 3}));
  EXPECT_EQ(x.grad().shape(), (Shape{0, 3}));
}

TEST(Dropout, Module) {
  nn::Dropout layer(0.5);
  const Tensor x = Tensor::ones({100});
  manual_seed(9);
  EXPECT_NE(layer(x).to_vector<float>(), x.to_vector<float>());
  layer.eval();
  EXPECT_EQ(layer(x).to_vector<float>(), x.to_vector<float>());
  EXPECT_EQ(default_generator(kCpu).state(), (Generator::State{9, 1}));
  manual_seed(0);
  EXPECT_ERROR(nn::Dropout(1.5), ErrorCode::invalid_argument, "dropout", "[0, 1]");
}

TEST(Dropout, Errors) {
  const auto invalid = ErrorCode::invalid_argument;
  const Tensor x = Tensor::ones({2});
  for (const double p : {-0.1, 1.0 + 0x1p-52, 2.0, double(NAN)}) {
    EXPECT_ERROR(dropout(x, p), invalid, "dropout: p must be in [0, 1]");
    EXPECT_ERROR(dropout(x, p, false), invalid, "dropout: p must be in [0, 1]");
  }
  EXPECT_ERROR(dropout(Tensor::ones({2}, {.dtype = DType::i32})), invalid, "floating dtype",
               "i32[2]@cpu");
}

TEST(DropoutCuda, GeneratorOfAnotherDevice) {
  GRADUS_SKIP_WITHOUT(kCuda);
  Generator generator(kCpu, 1);
  EXPECT_ERROR(dropout(Tensor::ones({2}, {.device = kCuda}), 0.5, true, &generator),
               ErrorCode::invalid_argument, "expected a generator on cuda:0, got one on cpu");
}

}  // namespace
}  // namespace gradus
