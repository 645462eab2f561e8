#include "nn/rms_norm.h"

#include "core/trace.h"
#include "tests/support/expect_error.h"
#include "tests/support/row_norm.h"

namespace gradus {
namespace {

using test::expect_near;
using test::Values;

GRADUS_TEST_OP_CASES(rms_norm);

class RmsNorm : public test::RowNorm {};
GRADUS_ON_EACH_DEVICE(RmsNorm);

TEST_P(RmsNorm, DefaultEpsilonIsThatOfTheDtype) {
  const double epsilons[] = {0x1p-23, 0x1p-52, 0x1p-10, 0x1p-7};  // as kFloatingTypes
  for (size_t i = 0; i < 4; ++i) {
    const DType dtype = test::kFloatingTypes[i];
    const double value = std::sqrt(epsilons[i]);  // its square is as large as eps
    const Values got = rms_norm(filled({1, 4}, value, dtype), {4}).to_vector<double>();
    const double stored = filled({1}, value, dtype).to_vector<double>()[0];
    EXPECT_NEAR(got[0], stored / std::sqrt(stored * stored + epsilons[i]), 4e-3)
        << to_string(dtype);
    EXPECT_NEAR(got[0], std::sqrt(0.5), 4e-3) << to_string(dtype);
  }
}

TEST_P(RmsNorm, TheMeanStays) {
  const Tensor y = rms_norm(tensor({3, 3, 3, 3, 1, -1, 7, 1}, {2, 4}), {4}, {}, 0.0);
  const double scale = 1 / std::sqrt(13.0);
  expect_near(y, {1, 1, 1, 1, scale, -scale, 7 * scale, scale}, 1e-12);
}

// xhat is not quite 1 in a row of one element, so that its gradient is not 0.
TEST_P(RmsNorm, OfOneElement) {
  const Tensor x = leaf({1, -2, 0}, {3, 1}), gamma = leaf({2}, {1});
  const Tensor y = rms_norm(x, {1}, gamma, 3.0);
  const double root7 = std::sqrt(7.0);
  expect_near(y, {1, -4 / root7, 0}, 1e-15);
  y.backward(tensor({4, 7, 3}, {3, 1}));
  // dy·gamma·eps / (x² + eps)^1.5
  expect_near(x.grad(), {3, 6 / root7, 6 / std::sqrt(3.0)}, 1e-14);
  expect_near(gamma.grad(), {2 - 14 / root7}, 1e-14);
}

TEST_P(RmsNorm, NonFiniteValuesStayInTheirRow) {
  // NaN makes its row NaN. The square of an infinity makes rstd 0: 0 beside it and NaN at it.
  for (const DType dtype : test::kFloatingTypes) {
    const Tensor y =
        rms_norm(tensor({1, NAN, 2, 1, INFINITY, 2, 2, 2, 2}, {3, 3}, dtype), {3}, {}, 0.0);
    expect_near(y, {NAN, NAN, NAN, 0, NAN, 0, 1, 1, 1}, 0);
  }
}

// More than 2^31 elements, +1 and -1 in turn, the last row -2 and +2: row offsets need 64 bits; 17
// GB of the device.
TEST(RmsNormCudaSlow, BeyondTwoToThe31Elements) {
  GRADUS_SKIP_WITHOUT(kCuda);
  const int64_t rows = 2097155, m = 1024;
  Values one_row(m), last(m);
  for (size_t i = 0; i < one_row.size(); ++i) last[i] = -(one_row[i] = i % 2 == 0 ? 1 : -1);
  const TensorOptions options{.dtype = DType::bf16, .device = kCuda};
  Tensor x = Tensor::from_vector(one_row, {1, m}, options).expand({rows, m}).clone();
  x.slice(0, rows - 1, rows).mul_(-2);
  x.set_requires_grad(true);
  Tensor gamma = Tensor::ones({m}, {.device = kCuda}).set_requires_grad(true);
  const Tensor y = rms_norm(x, {m}, gamma, 0.0);
  y.backward(Tensor::ones({rows, m}, options));
  for (const int64_t row : {int64_t(0), int64_t(2097151), rows - 2}) {
    expect_near(y.detach().slice(0, row, row + 1), one_row, 0);
    expect_near(x.grad().slice(0, row, row + 1), Values(m, 1), 0);
  }
  expect_near(y.detach().slice(0, rows - 1, rows), last, 0);
  expect_near(x.grad().slice(0, rows - 1, rows), Values(m, 0.5), 0);
  for (double& value : one_row) value *= double(rows - 2);
  expect_near(gamma.grad(), one_row, 0);
}

TEST_P(RmsNorm, ChannelsLastSamplesKeepTheirFormat) {
  Values values(2 * 3 * 2 * 4);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::cos(0.3 + 1.9 * double(i));
  const Shape shape{2, 3, 2, 4};
  const auto run = [&](MemoryFormat format, Tensor* grads) {
    Tensor x = tensor(values, shape).contiguous(format).detach().set_requires_grad(true);
    Tensor gamma = leaf(Values(values.begin(), values.begin() + 24), {3, 2, 4});
    const Tensor y = rms_norm(x, {3, 2, 4}, gamma);
    EXPECT_TRUE(y.is_contiguous(format));
    y.backward(tensor(Values(values.rbegin(), values.rend()), shape));
    grads[0] = x.grad(), grads[1] = gamma.grad();
    return y;
  };
  Tensor want[2], got[2];
  const Tensor want_y = run(MemoryFormat::contiguous, want);
  expect_near(run(MemoryFormat::channels_last, got), want_y.to_vector<double>(), 1e-14);
  for (int i = 0; i < 2; ++i) expect_near(got[i], want[i].to_vector<double>(), 1e-13);
}

TEST_P(RmsNorm, EveryMaskOfWantedGradients) {
  const Values x_values{1, 2, 4, 0, 3, 9}, w_values{1, 2, -1}, up{1, -2, 5, 0, 1, 2};
  Tensor all[2];
  for (int mask = 3; mask > 0; --mask) {
    Tensor inputs[] = {tensor(x_values, {2, 3}), tensor(w_values, {3})};
    for (int i = 0; i < 2; ++i) inputs[i].set_requires_grad((mask >> i & 1) != 0);
    rms_norm(inputs[0], {3}, inputs[1]).backward(tensor(up, {2, 3}));
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(inputs[i].grad().defined(), (mask >> i & 1) != 0);
      if (mask == 3) all[i] = inputs[i].grad();
      if (inputs[i].grad().defined()) expect_near(inputs[i].grad(), all[i].to_vector<double>(), 0);
    }
  }
}

TEST_P(RmsNorm, UnalignedViewsAgree) {
  for (const DType dtype : test::kFloatingTypes) {
    const int64_t m = 1024;
    Values values(static_cast<size_t>(3 * m));
    for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(0.1 + 1.7 * double(i));
    const Tensor buffer = filled({3 * m + 8}, 0, dtype);
    const Tensor x = buffer.as_strided({3, m}, {m, 1}, 1);
    const_cast<Tensor&>(x).copy_(tensor(values, {3, m}, dtype));
    EXPECT_TRUE(agrees(rms_norm(x, {m}).to_vector<double>(),
                       rms_norm(tensor(values, {3, m}, dtype), {m}).to_vector<double>(), dtype, m));
  }
}

TEST_P(RmsNorm, WholeRowsAgreeWithOthersToTheBit) { check_whole_rows<false>(); }

TEST_P(RmsNorm, ErrorsNameTheShapes) {
  const Tensor x = tensor(Values(48, 1.0), {2, 3, 8});
  const auto bad = ErrorCode::invalid_argument;
  EXPECT_ERROR(rms_norm(x, {3}), bad, "rms_norm: expected x to end in the normalized axes [3]",
               "f64[2,3,8]");
  EXPECT_ERROR(rms_norm(x, Shape()), bad, "one at least");
  EXPECT_ERROR(rms_norm(x, {8}, tensor({1, 2}, {2})), bad,
               "gamma must have the normalized shape [8]", "f64[2]");
  EXPECT_ERROR(rms_norm(x, {8}, filled({8}, 1, DType::f32)), bad, "gamma must be f64");
  EXPECT_ERROR(rms_norm(x, {8}, {}, -1.0), bad, "eps must not be negative");
}

TEST_P(RmsNorm, AgreesWithPyTorch) {
  for (const auto& golden : ref::golden_cases("rms_norm"))
    test::check_golden<false>(golden, GetParam());
}

TEST(RmsNormModule, ParametersAreNamedAsInPyTorch) {
  nn::RMSNorm norm({3, 2}), plain({4}, 1e-6, false);
  norm.to(DType::bf16);
  const auto state = norm.state_dict();
  ASSERT_EQ(state.size(), 1u);
  EXPECT_EQ(concat(state[0].name, " ", state[0].tensor), "weight f32[3,2]@cpu");
  EXPECT_TRUE(plain.state_dict().empty());
  EXPECT_ERROR(nn::RMSNorm({0}), ErrorCode::invalid_argument, "no empty one, got [0]");
  EXPECT_ERROR(nn::RMSNorm({int64_t{1} << 62, 4}), ErrorCode::invalid_argument,
               "rms_norm: the number of elements of [4611686018427387904,4] does not fit");
}

TEST(RmsNormModule, ForwardUsesItsOwnEpsilonAndParameters) {
  nn::RMSNorm norm({2}, 7.0);
  norm.weight.detach().fill_(2);
  expect_near(norm(Tensor::from_vector<float>({3, 3}, {1, 2})), {1.5, 1.5}, 1e-6);
}

}  // namespace
}  // namespace gradus
