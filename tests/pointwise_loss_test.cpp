#include "autograd/ops/pointwise_loss.h"

#include <cmath>

#include "autograd/grad_mode.h"
#include "autograd/ops/sum.h"
#include "core/trace.h"
#include "nn/loss.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/each_device.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/op_modes.h"

namespace gradus {
namespace {

GRADUS_TEST_OP_CASES(pointwise_loss);

Tensor tensor_of(const std::vector<double>& values, const Shape& shape, DType dtype = DType::f64,
                 Device device = kCpu) {
  return Tensor::from_vector(values, shape, {.dtype = dtype, .device = device})
      .set_requires_grad(true);
}

class PointwiseLossTest : public test::EachDevice {};

// Wrong gradients that the comparison of the cases must reject: each takes the right dx of the
// weighted binary cross-entropy and its parts.
struct Part {
  ref::Real d, n, weight, pos_weight, t, s;  // s: the sigmoid of x
};

struct Mutant {
  const char* name;
  ref::Real (*dx)(const Part&);
};

const Mutant kMutants[] = {
    {"no pos_weight", [](const Part& p) { return p.d * p.weight * (p.s - p.t); }},
    {"pos_weight on both shares",
     [](const Part& p) { return p.d * p.weight * p.pos_weight * (p.s - p.t); }},
    {"no weight",
     [](const Part& p) { return p.d * ((1 - p.t) * p.s - p.pos_weight * p.t * (1 - p.s)); }},
    {"sum instead of mean",
     [](const Part& p) {
       return p.n * p.d * p.weight * ((1 - p.t) * p.s - p.pos_weight * p.t * (1 - p.s));
     }},
    {"the target's share missing", [](const Part& p) { return p.d * p.weight * (1 - p.t) * p.s; }},
    {"upstream taken for its size",
     [](const Part& p) {
       return std::abs(p.d) * p.weight * ((1 - p.t) * p.s - p.pos_weight * p.t * (1 - p.s));
     }},
};

TEST(PointwiseLoss, MutantsAreRejected) {
  const Mutant right{"right", [](const Part& p) {
                       return p.d * p.weight * ((1 - p.t) * p.s - p.pos_weight * p.t * (1 - p.s));
                     }};
  for (const OpCase& op_case : test_cases_of("pointwise_loss")) {
    if (op_case.name != "bce_both") continue;
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      const std::vector<ref::Array> in = draw_inputs(op_case, dtype, 1);
      const ref::Array dy = ref::full({}, -0.75);
      const std::vector<double> want = op_case.reference_backward(in, dy)[0].data;
      const auto judge = [&](const Mutant& mutant) {
        std::vector<double> dx;
        const auto n = static_cast<ref::Real>(in[0].numel());
        for (int64_t i = 0; i < in[0].numel(); ++i) {  // [2, 3, 5], weight [5], pos_weight [3, 1]
          dx.push_back(
              static_cast<double>(mutant.dx({.d = dy[0] / n,
                                             .n = n,
                                             .weight = in[2][i % 5],
                                             .pos_weight = in[3][i / 5 % 3],
                                             .t = in[1][i],
                                             .s = 1 / (1 + std::exp(-ref::Real(in[0][i])))})));
        }
        return compare(dx, want, dtype, op_case.reduction);
      };
      EXPECT_TRUE(assertion(judge(right))) << to_string(dtype);
      for (const Mutant& mutant : kMutants) {
        EXPECT_FALSE(judge(mutant)) << mutant.name << " in " << to_string(dtype);
      }
    }
  }
}

// PyTorch's values and gradients.
TEST_P(PointwiseLossTest, Golden) {
  int cases = 0;
  for (const ref::Json& json : ref::golden_cases("losses")) {
    const std::string name = json.at("name");
    if (name == "nll") continue;
    const ref::Json &inputs = json.at("inputs"), &args = json.at("args");
    SCOPED_TRACE(name + " " + args.dump());
    const std::string mode = args.at("reduction");
    const Reduction reduction = mode == "mean"  ? Reduction::mean
                                : mode == "sum" ? Reduction::sum
                                                : Reduction::none;
    for (const DType dtype : {DType::f64, DType::f32}) {
      const auto input = [&](const std::string& key) {
        const ref::Array array = ref::golden_array(inputs, key);
        if (array.empty()) return Tensor();
        return Tensor::from_vector(array.data, array.shape, {.dtype = dtype, .device = GetParam()});
      };
      const Tensor x = input("x").set_requires_grad(true), t = input("t");
      const Tensor y = name == "mse"  ? mse_loss(x, t, reduction)
                       : name == "l1" ? l1_loss(x, t, reduction)
                       : name == "smooth_l1"
                           ? smooth_l1_loss(x, t, reduction, args.at("beta"))
                           : binary_cross_entropy_with_logits(x, t,
                                                              {.weight = input("weight"),
                                                               .pos_weight = input("pos_weight"),
                                                               .reduction = reduction});
      const ref::Array dy = ref::golden_array(json.at("dy"));
      y.backward(Tensor::from_vector(dy.data, dy.shape, {.dtype = dtype, .device = GetParam()}));
      const ref::Array want = ref::golden_array(json.at("outputs").at("y"));
      const ref::Array want_dx = ref::golden_array(json.at("gradients").at("x"));
      EXPECT_EQ(y.shape(), want.shape);
      EXPECT_TRUE(agrees(y.to_vector<double>(), want.data, dtype, 12));
      EXPECT_TRUE(agrees(x.grad().to_vector<double>(), want_dx.data, dtype, 12));
    }
    ++cases;
  }
  EXPECT_EQ(cases, 24);
}

// Strides of every kind against the same values made dense: transposed, sliced, repeated.
TEST_P(PointwiseLossTest, AnyStrides) {
  const ref::Array a = draw_upstream({6, 10}, DType::f32, 1);
  const TensorOptions options{.dtype = DType::f32, .device = GetParam()};
  const Tensor base = Tensor::from_vector(a.data, a.shape, options);
  const Tensor x = base.transpose(0, 1).slice(0, 1, 10, 3);        // [3, 6]
  const Tensor t = base.slice(1, 2, 3).squeeze(1).expand({3, 6});  // [3, 6], repeated
  for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
    std::vector<std::vector<double>> results[2];
    for (const bool dense : {false, true}) {
      Tensor own_x = dense ? x.detach().contiguous() : x.detach();
      Tensor own_t = dense ? t.detach().contiguous() : t.detach();
      own_x.set_requires_grad(true);
      own_t.set_requires_grad(true);
      const Tensor y = smooth_l1_loss(own_x, own_t, reduction, 0.5);
      y.backward(Tensor::full(y.shape(), 0.5, options));
      results[dense] = {y.to_vector<double>(), own_x.grad().to_vector<double>(),
                        own_t.grad().to_vector<double>()};
    }
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(agrees(results[0][i], results[1][i], DType::f32, 18)) << i;
    }
  }
}

TEST_P(PointwiseLossTest, UnalignedViews) {
  const ref::Array a = draw_upstream({2001}, DType::f32, 1);
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    const TensorOptions options{.dtype = dtype, .device = GetParam()};
    const Tensor base = Tensor::from_vector(a.data, a.shape, options);
    Tensor x = base.slice(0, 1, 1001), t = base.slice(0, 500, 1500);
    Tensor same_x = x.clone(), same_t = t.clone();
    for (Tensor* tensor : {&x, &t, &same_x, &same_t}) tensor->set_requires_grad(true);
    mse_loss(x, t).backward();
    mse_loss(same_x, same_t).backward();
    EXPECT_EQ(x.grad().to_vector<double>(), same_x.grad().to_vector<double>());
    EXPECT_EQ(t.grad().to_vector<double>(), same_t.grad().to_vector<double>());
    EXPECT_TRUE(agrees(mse_loss(x, t).to_vector<double>(),
                       mse_loss(same_x, same_t).to_vector<double>(), acc_dtype(dtype), 1000));
  }
}

// One gradient alone is that of the run with both, bit for bit.
TEST_P(PointwiseLossTest, OneGradientAlone) {
  const ref::Array a = draw_upstream({3, 37}, DType::f32, 1),
                   b = draw_upstream({3, 37}, DType::f32, 2);
  for (int kind = 0; kind < 4; ++kind) {
    const auto gradients = [&](bool of_x, bool of_t) {
      Tensor x = tensor_of(a.data, a.shape, DType::f32, GetParam()).set_requires_grad(of_x);
      Tensor t = tensor_of(b.data, b.shape, DType::f32, GetParam()).set_requires_grad(of_t);
      const Tensor y = kind == 0   ? mse_loss(x, t)
                       : kind == 1 ? l1_loss(x, t)
                       : kind == 2 ? smooth_l1_loss(x, t)
                                   : binary_cross_entropy_with_logits(x, t);
      y.backward();
      EXPECT_EQ(x.grad().defined(), of_x);
      EXPECT_EQ(t.grad().defined(), of_t);
      std::vector<std::vector<double>> all(2);
      if (of_x) all[0] = x.grad().to_vector<double>();
      if (of_t) all[1] = t.grad().to_vector<double>();
      return all;
    };
    const auto both = gradients(true, true);
    EXPECT_EQ(gradients(true, false)[0], both[0]);
    EXPECT_EQ(gradients(false, true)[1], both[1]);
  }
}

// Long rows are worked on in parts.
TEST_P(PointwiseLossTest, EachElementOfALongRowHasItsPosWeight) {
  std::vector<double> weights(40'003);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<double>(i);
  const Tensor pos_weight = tensor_of(weights, {40'003}, DType::f32, GetParam()).detach();
  const Tensor x = zeros_like(pos_weight).set_requires_grad(true);
  const Tensor one = Tensor::ones(x.shape(), x.options());
  binary_cross_entropy_with_logits(x, one, {.pos_weight = pos_weight, .reduction = Reduction::sum})
      .backward();
  for (double& weight : weights) weight /= -2;
  EXPECT_TRUE(agrees(x.grad().to_vector<double>(), weights, DType::f32, 1));
  const Tensor y = binary_cross_entropy_with_logits(
      x, one, {.pos_weight = pos_weight, .reduction = Reduction::none});
  for (double& weight : weights) weight *= -2 * std::log(2.0);
  EXPECT_TRUE(agrees(y.to_vector<double>(), weights, DType::f32, 1));
}

TEST_P(PointwiseLossTest, SixteenBitLossesAreF32) {
  const Tensor x = tensor_of({256, 1}, {2}, DType::bf16, GetParam());
  const Tensor t = tensor_of({1, 0.5}, {2}, DType::bf16, GetParam());
  const Tensor y = mse_loss(x, t, Reduction::none);
  EXPECT_EQ(y.dtype(), DType::f32);
  EXPECT_EQ(y.to_vector<double>(), (std::vector<double>{65025, 0.25}));  // 65025 is no bf16
}

TEST_P(PointwiseLossTest, NanPassesThrough) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int kind = 0; kind < 4; ++kind) {
    for (const bool in_x : {true, false}) {
      const Tensor x = tensor_of({in_x ? nan : 1.0}, {1}, DType::f32, GetParam());
      const Tensor t = tensor_of({in_x ? 1.0 : nan}, {1}, DType::f32, GetParam());
      const Tensor y = kind == 0   ? mse_loss(x, t)
                       : kind == 1 ? l1_loss(x, t)
                       : kind == 2 ? smooth_l1_loss(x, t)
                                   : binary_cross_entropy_with_logits(x, t);
      y.backward();
      EXPECT_TRUE(std::isnan(y.item<float>())) << kind;
      EXPECT_TRUE(std::isnan(x.grad().item<float>())) << kind;
    }
  }
}

GRADUS_ON_EACH_DEVICE(PointwiseLossTest);

TEST(PointwiseLoss, ModulesCallTheFunctions) {
  const Tensor x = tensor_of({0.5, -2}, {1, 2}), t = tensor_of({1, 0.25}, {1, 2});
  const auto same = [](const Tensor& a, const Tensor& b) {
    EXPECT_EQ(a.to_vector<double>(), b.to_vector<double>());
  };
  const Tensor two = Tensor::full({2}, 2.0, {.dtype = DType::f64});
  same(nn::MSELoss()(x, t), mse_loss(x, t));
  same(nn::MSELoss(Reduction::sum)(x, t), mse_loss(x, t, Reduction::sum));
  same(nn::L1Loss(Reduction::none)(x, t), l1_loss(x, t, Reduction::none));
  same(nn::SmoothL1Loss(Reduction::mean, 0.5)(x, t), smooth_l1_loss(x, t, Reduction::mean, 0.5));
  same(nn::BCEWithLogitsLoss({.pos_weight = two})(x, t),
       binary_cross_entropy_with_logits(x, t, {.pos_weight = two}));
}

// One launch forward and one backward, without copies, whatever the strides.
TEST(PointwiseLoss, OneLaunchEachWay) {
  const Tensor x = tensor_of({1, 2, 3, 4, 5, 6}, {2, 3}).detach().transpose(0, 1);
  Tensor leaf = x.detach().set_requires_grad(true);
  const Tensor t = Tensor::zeros({3, 2}, {.dtype = DType::f64});
  const Trace trace;
  l1_loss(leaf, t).backward(Tensor::ones({}, {.dtype = DType::f64}));
  std::vector<std::string_view> names;
  for (const TraceRecord& record : trace.records()) names.push_back(record.name);
  EXPECT_EQ(std::count(names.begin(), names.end(), "pointwise_loss_forward"), 1);
  EXPECT_EQ(std::count(names.begin(), names.end(), "pointwise_loss_backward"), 1);
  EXPECT_EQ(std::count(names.begin(), names.end(), "copy"), 0);
}

TEST(PointwiseLoss, Errors) {
  const auto invalid = ErrorCode::invalid_argument;
  const Tensor x = Tensor::zeros({2, 3});
  EXPECT_ERROR(mse_loss(x, Tensor::zeros({3})), invalid, "mse_loss: expected targets of the shape",
               "f32[2,3]@cpu", "f32[3]@cpu");
  EXPECT_ERROR(l1_loss(x, Tensor::zeros({2, 3}, {.dtype = DType::f64})), invalid, "l1_loss",
               "f64[2,3]@cpu");
  EXPECT_ERROR(mse_loss(Tensor::zeros({2}, {.dtype = DType::i64}),
                        Tensor::zeros({2}, {.dtype = DType::i64})),
               invalid, "floating");
  EXPECT_ERROR(smooth_l1_loss(x, x, Reduction::mean, -1), invalid, "beta must be 0 or more", "-1");
  EXPECT_ERROR(binary_cross_entropy_with_logits(x, x, {.weight = Tensor::ones({2})}), invalid,
               "binary_cross_entropy_with_logits");
  EXPECT_ERROR(binary_cross_entropy_with_logits(x, x, {.pos_weight = Tensor::ones({4, 2, 3})}),
               invalid, "pos_weight must broadcast to f32[2,3]@cpu");
  EXPECT_ERROR(
      binary_cross_entropy_with_logits(x, x, {.weight = Tensor::ones({3}, {.dtype = DType::f64})}),
      invalid, "expected weight in f32", "f64[3]@cpu");
}

TEST(PointwiseLoss, SavedTensorsChangedInPlace) {
  Tensor x = tensor_of({1, 2}, {2});
  const Tensor y = mse_loss(x, tensor_of({0, 0}, {2}));
  {
    const NoGradGuard no_grad;
    x.zero_();
  }
  EXPECT_ERROR(y.backward(), ErrorCode::autograd, "mse_loss", "x f64[2]", "version");
}

}  // namespace
}  // namespace gradus
