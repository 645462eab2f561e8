#include "autograd/ops/nll_loss.h"

#include <cmath>

#include "autograd/ops/cross_entropy.h"
#include "nn/loss.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/gpu.h"
#include "tests/support/op_modes.h"

namespace gradus {
namespace {

GRADUS_TEST_OP_CASES(nll_loss);

Tensor labels_of(const std::vector<int64_t>& values, Device device = kCpu) {
  return Tensor::from_vector(values, {static_cast<int64_t>(values.size())},
                             {.dtype = DType::i64, .device = device});
}

// Of log-probabilities it is the cross-entropy of any logits that they come from.
TEST(NllLoss, OfLogProbabilitiesIsCrossEntropy) {
  const ref::Array logits = draw_upstream({6, 5}, DType::f64, 1);
  std::vector<double> log_probs = logits.data;
  for (int64_t row = 0; row < 6; ++row) {
    double total = 0;
    for (int64_t k = 0; k < 5; ++k) total += std::exp(logits.at(row, k));
    for (int64_t k = 0; k < 5; ++k) log_probs[static_cast<size_t>(row * 5 + k)] -= std::log(total);
  }
  const Tensor labels = labels_of({0, 4, 2, -100, 1, 1});
  const Tensor weight = Tensor::from_vector<double>({0.5, 1, 2, 0.25, 3}, {5});
  for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
    const Tensor a = nll_loss(Tensor::from_vector(log_probs, {6, 5}), labels,
                              {.weight = weight, .reduction = reduction});
    const Tensor b = cross_entropy(Tensor::from_vector(logits.data, {6, 5}), labels,
                                   {.weight = weight, .reduction = reduction});
    EXPECT_TRUE(agrees(a.to_vector<double>(), b.to_vector<double>(), DType::f64, 6));
  }
}

// PyTorch's values and gradients.
void expect_golden(Device device) {
  int cases = 0;
  for (const ref::Json& json : ref::golden_cases("losses")) {
    if (json.at("name") != "nll") continue;
    const ref::Json &inputs = json.at("inputs"), &args = json.at("args");
    SCOPED_TRACE(args.dump());
    const ref::Array x_values = ref::golden_array(inputs, "x"),
                     labels = ref::golden_array(inputs, "labels"),
                     weight = ref::golden_array(inputs, "weight");
    const std::string mode = args.at("reduction");
    NllLossOptions options{.reduction = mode == "mean"  ? Reduction::mean
                                        : mode == "sum" ? Reduction::sum
                                                        : Reduction::none,
                           .ignore_index = args.at("ignore_index")};
    const TensorOptions f64{.dtype = DType::f64, .device = device};
    if (!weight.empty()) options.weight = Tensor::from_vector(weight.data, weight.shape, f64);
    const Tensor x =
        Tensor::from_vector(x_values.data, x_values.shape, f64).set_requires_grad(true);
    const Tensor y = nll_loss(
        x, Tensor::from_vector(labels.data, labels.shape, {.dtype = DType::i64, .device = device}),
        options);
    const ref::Array dy = ref::golden_array(json.at("dy"));
    y.backward(Tensor::from_vector(dy.data, dy.shape, f64));
    const ref::Array want = ref::golden_array(json.at("outputs").at("y"));
    EXPECT_EQ(y.shape(), want.shape);
    EXPECT_TRUE(agrees(y.to_vector<double>(), want.data, DType::f64, 12));
    const ref::Array want_dx = ref::golden_array(json.at("gradients").at("x"));
    EXPECT_TRUE(agrees(x.grad().to_vector<double>(), want_dx.data, DType::f64, 12));
    ++cases;
  }
  EXPECT_EQ(cases, 9);
}
TEST(NllLoss, Golden) { expect_golden(kCpu); }
TEST(NllLossCuda, Golden) {
  GRADUS_SKIP_WITHOUT(kCuda);
  expect_golden(kCuda);
}

TEST(NllLoss, ModuleCallsTheFunction) {
  const Tensor x = Tensor::from_vector<float>({-1, -2, -3, -4}, {2, 2});
  const Tensor labels = labels_of({1, 0});
  EXPECT_EQ(nn::NLLLoss()(x, labels).item<float>(), 2.5f);
  EXPECT_EQ(nn::NLLLoss({.reduction = Reduction::sum})(x, labels).item<float>(), 5.0f);
  EXPECT_EQ(nn::CrossEntropyLoss()(x, labels).item<float>(),
            cross_entropy(x, labels).item<float>());
}

// Wrong gradients that the comparison of the cases must reject.
struct Row {
  ref::Real d, divisor, n, weight;
  bool is_label, is_ignored;
};
struct Mutant {
  const char* name;
  ref::Real (*dx)(const Row&);
};
ref::Real right(const Row& r) {
  return r.is_label && !r.is_ignored ? -r.d * r.weight / r.divisor : 0;
}
const Mutant kMutants[] = {
    {"no weight",
     [](const Row& r) { return r.is_label && !r.is_ignored ? -r.d / r.divisor : ref::Real(0); }},
    {"divided by the number of rows", [](const Row& r) { return right(r) * r.divisor / r.n; }},
    {"sum instead of mean", [](const Row& r) { return right(r) * r.divisor; }},
    {"the sign turned", [](const Row& r) { return -right(r); }},
    {"ignored rows have a gradient",
     [](const Row& r) { return r.is_label ? -r.d * r.weight / r.divisor : ref::Real(0); }},
    {"every class has a gradient",
     [](const Row& r) { return r.is_ignored ? ref::Real(0) : -r.d * r.weight / r.divisor; }},
};

TEST(NllLoss, MutantsAreRejected) {
  for (const OpCase& op_case : test_cases_of("nll_loss")) {
    if (op_case.name != "everything") continue;  // [9, 4], label 2 ignored
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      const std::vector<ref::Array> in = draw_inputs(op_case, dtype, 1);
      const std::vector<double> want = op_case.reference_backward(in, ref::full({}, -0.75))[0].data;
      ref::Real divisor = 0;
      for (int64_t row = 0; row < 9; ++row) {
        if (in[1][row] != 2) divisor += in[2][static_cast<int64_t>(in[1][row])];
      }
      const auto judge = [&](ref::Real (*slope)(const Row&)) {
        std::vector<double> dx;
        for (int64_t i = 0; i < 36; ++i) {
          const auto label = static_cast<int64_t>(in[1][i / 4]);
          dx.push_back(static_cast<double>(slope({.d = -0.75,
                                                  .divisor = divisor,
                                                  .n = 9,
                                                  .weight = in[2][label],
                                                  .is_label = i % 4 == label,
                                                  .is_ignored = label == 2})));
        }
        return compare(dx, want, dtype, op_case.reduction);
      };
      EXPECT_TRUE(assertion(judge(right))) << to_string(dtype);
      for (const Mutant& mutant : kMutants) {
        EXPECT_FALSE(judge(mutant.dx)) << mutant.name << " in " << to_string(dtype);
      }
    }
  }
}

TEST(NllLoss, LabelsAndWeightsMayBeStrided) {
  const Tensor x = Tensor::from_vector<float>({-1, -2, -4, -3, -1, -0.5f}, {2, 3});
  const Tensor weight = Tensor::from_vector<float>({2, 9, 3, 9, 5, 9}, {6}).slice(0, 0, 6, 2);
  const Tensor labels = labels_of({2, 7, 0, 7}).slice(0, 0, 4, 2);
  EXPECT_EQ(
      nll_loss(x, labels, {.weight = weight, .reduction = Reduction::none}).to_vector<float>(),
      (std::vector<float>{20, 6}));
}

TEST(NllLoss, Errors) {
  const auto invalid = ErrorCode::invalid_argument;
  const Tensor x = Tensor::zeros({2, 3}), labels = labels_of({0, 1});
  EXPECT_ERROR(nll_loss(x, labels_of({0, 1, 2})), invalid, "nll_loss: expected labels [2]",
               "log-probabilities f32[2,3]@cpu", "i64[3]@cpu");
  EXPECT_ERROR(nll_loss(x, Tensor::zeros({2})), invalid, "of u8, i32 or i64", "f32[2]@cpu");
  EXPECT_ERROR(nll_loss(Tensor::zeros({2}), labels), invalid,
               "expected log-probabilities [n, c, ...]");
  EXPECT_ERROR(nll_loss(Tensor::zeros({2, 0}), labels), invalid, "at least one class");
  EXPECT_ERROR(nll_loss(x, labels, {.weight = Tensor::ones({2})}), invalid,
               "expected class weights f32[3]", "f32[2]@cpu");
}

}  // namespace
}  // namespace gradus
