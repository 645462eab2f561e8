#include "nn/layer_norm.h"

#include "autograd/ops/sum.h"
#include "core/launch.h"
#include "core/ops/layer_norm.h"
#include "core/trace.h"
#include "tests/support/expect_error.h"
#include "tests/support/row_norm.h"

namespace gradus {
namespace {

using test::expect_near;
using test::Values;

GRADUS_TEST_OP_CASES(layer_norm);

class LayerNorm : public test::RowNorm {};
GRADUS_ON_EACH_DEVICE(LayerNorm);

const Values kImage = [] {
  Values values(2 * 3 * 2 * 4);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(1.0 + 2.3 * double(i));
  return values;
}();
const Shape kImageShape{2, 3, 2, 4};

std::vector<std::string> launches(const Trace& trace) {
  std::vector<std::string> names;
  for (const auto& record : trace.records()) names.emplace_back(record.name);
  return names;
}

TEST_P(LayerNorm, ChannelsLastSamplesKeepTheirFormat) {
  const Values weights(kImage.begin(), kImage.begin() + 24);
  const auto run = [&](MemoryFormat format, Tensor* grads) {
    Tensor x = tensor(kImage, kImageShape).contiguous(format).detach().set_requires_grad(true);
    Tensor gamma = leaf(weights, {3, 2, 4}), beta = leaf(weights, {3, 2, 4});
    const Tensor y = layer_norm(x, {3, 2, 4}, gamma, beta);
    EXPECT_TRUE(y.is_contiguous(format));
    y.backward(tensor(Values(kImage.rbegin(), kImage.rend()), kImageShape));
    EXPECT_TRUE(x.grad().is_contiguous(format));
    EXPECT_TRUE(gamma.grad().is_contiguous());
    grads[0] = x.grad(), grads[1] = gamma.grad(), grads[2] = beta.grad();
    return y;
  };
  Tensor want[3], got[3];
  const Tensor want_y = run(MemoryFormat::contiguous, want);
  expect_near(run(MemoryFormat::channels_last, got), want_y.to_vector<double>(), 1e-14);
  for (int i = 0; i < 3; ++i) expect_near(got[i], want[i].to_vector<double>(), 1e-13);
}

TEST_P(LayerNorm, CopiesAreSeenInATrace) {
  const Tensor x = tensor(kImage, kImageShape);
  const Tensor last = x.contiguous(MemoryFormat::channels_last);
  const auto names_of = [&](const Tensor& input, const Shape& normalized) {
    Trace trace;
    layer_norm(input, normalized);
    return launches(trace);
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names_of(x, {4}), Names{"layer_norm_forward"});
  EXPECT_EQ(names_of(last, {3, 2, 4}), Names{"layer_norm_forward"});
  EXPECT_EQ(names_of(last, {2, 4}), (Names{"copy", "layer_norm_forward"}));
  EXPECT_EQ(names_of(x.transpose(2, 3), {2}), (Names{"copy", "layer_norm_forward"}));
}

TEST_P(LayerNorm, AnyStridesGiveTheSame) {
  Tensor base = leaf(kImage, kImageShape);
  const Tensor view = base.permute({3, 0, 2, 1});  // [4, 2, 2, 3]
  const Tensor want = layer_norm(view.detach().contiguous(), {2, 3});
  const Tensor y = layer_norm(view, {2, 3});
  expect_near(y, want.to_vector<double>(), 0);
  y.backward(y.detach().transpose(0, 1).contiguous().transpose(0, 1));  // strided upstream
  EXPECT_TRUE(base.grad().defined());
}

TEST_P(LayerNorm, ReadsStridedParameters) {
  const Tensor x = tensor({1, -1, 3, 1}, {2, 2});
  const Tensor gamma = leaf({2, 9, 3}, {3}), beta = leaf({10, 9, 9, 20}, {4});
  const Tensor y = layer_norm(x, {2}, gamma.slice(0, 0, 3, 2), beta.slice(0, 0, 4, 3), 0);
  expect_near(y, {12, 17, 12, 17}, 0);
  y.backward(tensor({1, 2, 3, 4}, {2, 2}));
  expect_near(gamma.grad(), {4, 0, -6}, 0);
  expect_near(beta.grad(), {4, 0, 0, 6}, 0);
}

TEST_P(LayerNorm, UnalignedViewsAgree) {
  for (const DType dtype : test::kFloatingTypes) {
    for (const int64_t m : {8, 64, 1024, 4104}) {
      SCOPED_TRACE(concat(dtype, " ", m));
      Values values(static_cast<size_t>(5 * m));
      for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(0.1 + 1.7 * double(i));
      const auto run = [&](int64_t offset, Tensor* dx) {
        const Tensor buffer = filled({5 * m + 8}, 0, dtype);
        Tensor x = buffer.as_strided({5, m}, {m, 1}, offset);
        x.copy_(tensor(values, {5, m}, dtype));
        x.set_requires_grad(true);
        const Tensor y = layer_norm(x, {m});
        y.backward(tensor(Values(values.rbegin(), values.rend()), {5, m}, dtype));
        *dx = x.grad();
        return y;
      };
      Tensor want_dx, got_dx;
      const Values want = run(0, &want_dx).to_vector<double>();
      const Tensor got = run(1, &got_dx);
      EXPECT_TRUE(agrees(got.to_vector<double>(), want, dtype, m));
      EXPECT_TRUE(agrees(got_dx.to_vector<double>(), want_dx.to_vector<double>(), dtype, m));
    }
  }
}

TEST_P(LayerNorm, WholeRowsAgreeWithOthersToTheBit) { check_whole_rows<true>(); }

TEST_P(LayerNorm, NonFiniteValuesStayInTheirRow) {
  for (const DType dtype : test::kFloatingTypes) {
    const Tensor y =
        layer_norm(tensor({1, NAN, 2, 1, INFINITY, 2, 1, 2, 3}, {3, 3}, dtype), {3}, {}, {}, 0);
    const double one = std::sqrt(1.5);
    expect_near(y, {NAN, NAN, NAN, NAN, NAN, NAN, -one, 0, one}, 4e-3);
  }
}

TEST_P(LayerNorm, EveryMaskOfWantedGradients) {
  const Values x_values{1, 2, 4, 0, 3, 9}, w_values{1, 2, -1}, up{1, -2, 5, 0, 1, 2};
  Tensor all[3];
  for (int mask = 7; mask > 0; --mask) {
    Tensor inputs[] = {tensor(x_values, {2, 3}), tensor(w_values, {3}), tensor(w_values, {3})};
    for (int i = 0; i < 3; ++i) inputs[i].set_requires_grad((mask >> i & 1) != 0);
    layer_norm(inputs[0], {3}, inputs[1], inputs[2]).backward(tensor(up, {2, 3}));
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(inputs[i].grad().defined(), (mask >> i & 1) != 0);
      if (mask == 7) all[i] = inputs[i].grad();
      if (inputs[i].grad().defined()) expect_near(inputs[i].grad(), all[i].to_vector<double>(), 0);
    }
  }
}

// xhat of the mean alone would overflow: what fills up the last vector of a row does not count.
TEST_P(LayerNorm, GradientOfLargeConstantRows) {
  const Tensor x = filled({1, 3}, 0x1p125, DType::f32).set_requires_grad(true);
  layer_norm(x, {3}, {}, {}, 0x1p-16).backward(tensor({1, 2, 3}, {1, 3}, DType::f32));
  expect_near(x.grad(), {-256, 0, 256}, 1e-4);
}

TEST_P(LayerNorm, ErrorsNameTheShapes) {
  const Tensor x = tensor(kImage, {2, 3, 8});
  const auto bad = ErrorCode::invalid_argument;
  EXPECT_ERROR(layer_norm(x, {3}), bad, "layer_norm: expected x to end in the normalized axes [3]",
               "f64[2,3,8]");
  EXPECT_ERROR(layer_norm(x, {2, 2, 3, 8}), bad, "[2,2,3,8]");
  EXPECT_ERROR(layer_norm(x, Shape()), bad, "one at least");
  EXPECT_ERROR(layer_norm(x, {8}, tensor({1, 2}, {2})), bad,
               "gamma must have the normalized shape [8]", "f64[2]");
  EXPECT_ERROR(layer_norm(x, {8}, {}, tensor(kImage, {48})), bad, "beta must have", "f64[48]");
  EXPECT_ERROR(layer_norm(x, {8}, filled({8}, 1, DType::f32)), bad, "gamma must be f64");
  EXPECT_ERROR(layer_norm(x, {8}, {}, {}, -1), bad, "eps must not be negative");
  EXPECT_ERROR(layer_norm(Tensor::zeros({2, 3}, {.dtype = DType::i64}), {3}), bad, "floating");
}

TEST_P(LayerNorm, GammaChangedAfterForwardIsAnError) {
  Tensor x = leaf({1, 2, 3}, {1, 3}), gamma = tensor({1, 1, 1}, {3});
  const Tensor y = layer_norm(x, {3}, gamma);
  gamma.fill_(2);
  EXPECT_ERROR(y.backward(tensor({1, 2, 4}, {1, 3})), ErrorCode::autograd, "layer_norm", "gamma");
}

TEST_P(LayerNorm, AgreesWithPyTorch) {
  for (const auto& golden : ref::golden_cases("layer_norm"))
    test::check_golden<true>(golden, GetParam());
}

// The sum of a row with an infinity is infinite or NaN, depending on its order; what is saved is
// NaN.
TEST_P(LayerNorm, SavedMeanOfARowWithAnInfinityIsNaN) {
  for (const int64_t m : {3, 64, 4096, 8000, 30000, 200000}) {
    for (const int64_t at : {int64_t{0}, m - 1}) {
      Values values(2 * m, 1.0);
      values[size_t(at)] = INFINITY;
      const Tensor x = tensor(values, {2, m}, DType::f32), y = Tensor::empty({2, m}, x.options());
      const Tensor mean = Tensor::empty({2}, x.options()), rstd = Tensor::empty({2}, x.options());
      launch(LayerNormForward{.x = x.raw(),
                              .gamma = {},
                              .beta = {},
                              .y = y.raw(),
                              .mean = mean.raw(),
                              .rstd = rstd.raw(),
                              .eps = 1.0});
      expect_near(mean, {NAN, 1}, 0);
      expect_near(rstd, {NAN, 1}, 0);
    }
  }
}

// More than 2^31 elements: row offsets need 64 bits.
TEST(LayerNormCudaSlow, BeyondTwoToThe31Elements) {
  GRADUS_SKIP_WITHOUT(kCuda);
  const int64_t rows = 2097155, m = 1024;
  Values one_row(m);
  for (int64_t i = 0; i < m; ++i) one_row[size_t(i)] = i % 2 == 0 ? 1 : -1;
  const TensorOptions options{.dtype = DType::bf16, .device = kCuda};
  Tensor x = Tensor::from_vector(one_row, {1, m}, options).expand({rows, m}).contiguous().detach();
  x.slice(0, rows - 1, rows).mul_(-2);
  x.set_requires_grad(true);
  Tensor beta = Tensor::zeros({m}, {.device = kCuda}).set_requires_grad(true);
  const Tensor y = layer_norm(x, {m}, {}, beta, 0);
  for (const int64_t row : {int64_t(0), int64_t(2097151), rows - 2}) {
    expect_near(y.detach().slice(0, row, row + 1), one_row, 0);
  }
  Values last(one_row);
  for (double& value : last) value = -value;
  expect_near(y.detach().slice(0, rows - 1, rows), last, 0);
  y.backward(Tensor::ones({rows, m}, options));
  expect_near(beta.grad(), Values(m, double(rows)), 0);
  expect_near(x.grad().slice(0, rows - 1, rows), Values(m, 0), 0);
}

TEST(LayerNormModule, ParametersAreNamedAsInPyTorch) {
  nn::LayerNorm norm({3, 2});
  const auto names = [](nn::Module& module) {
    std::string text;
    for (const auto& entry : module.state_dict())
      text += concat(entry.name, " ", entry.tensor, "; ");
    return text;
  };
  EXPECT_EQ(names(norm), "weight f32[3,2]@cpu; bias f32[3,2]@cpu; ");
  norm.to(DType::bf16);
  EXPECT_EQ(names(norm), "weight f32[3,2]@cpu; bias f32[3,2]@cpu; ");
  norm.to(DType::f64);
  EXPECT_EQ(names(norm), "weight f64[3,2]@cpu; bias f64[3,2]@cpu; ");
  nn::LayerNorm without_bias({4}, 1e-5, true, false), plain({4}, 1e-5, false);
  EXPECT_EQ(names(without_bias), "weight f32[4]@cpu; ");
  EXPECT_EQ(names(plain), "");
  EXPECT_ERROR(nn::LayerNorm({3, 0}), ErrorCode::invalid_argument, "no empty one, got [3,0]");
  EXPECT_ERROR(nn::LayerNorm({int64_t{1} << 62, 4}), ErrorCode::invalid_argument,
               "layer_norm: the number of elements of [4611686018427387904,4] does not fit");
  EXPECT_ERROR(nn::LayerNorm({-2, -3}, 1e-5, false), ErrorCode::invalid_argument,
               "must not be negative, got [-2,-3]");
}

TEST(LayerNormModule, ForwardUsesItsOwnEpsilonAndParameters) {
  nn::LayerNorm norm({2}, 0.75);
  norm.weight.detach().fill_(3);
  norm.bias.detach().fill_(10);
  const Tensor x = Tensor::from_vector<float>({0, 1, 4, 5}, {2, 2});
  expect_near(norm(x), {8.5, 11.5, 8.5, 11.5}, 1e-5);  // var 1/4, rstd 1
}

}  // namespace
}  // namespace gradus
