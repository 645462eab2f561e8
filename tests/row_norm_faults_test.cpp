// Known faults of layer and RMS norms elsewhere, by family, on both devices.
#include <algorithm>

#include "autograd/ops/activation.h"
#include "autograd/ops/arithmetic.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/sum.h"
#include "nn/layer_norm.h"
#include "nn/linear.h"
#include "nn/rms_norm.h"
#include "tests/support/row_norm.h"

namespace gradus {
namespace {

using test::expect_near;
using test::repeated;
using test::Values;

class RowNormFaults : public test::RowNorm {};
GRADUS_ON_EACH_DEVICE(RowNormFaults);

TEST_P(RowNormFaults, D001_ConstantRowsStayFinite) {
  const Shape row{513, 1025};
  const Tensor x = filled({2, 513, 1025}, 3.3, DType::f32);
  for (const double value : layer_norm(x, row).to_vector<double>())
    ASSERT_LE(std::abs(value), 1e-3);
  const Tensor beta = filled(row, 0.5, DType::f32), gamma = filled(row, 2, DType::f32);
  for (const double value : layer_norm(x, row, gamma, beta).to_vector<double>())
    ASSERT_NEAR(value, 0.5, 2e-3);
  for (const double value : rms_norm(x, row).to_vector<double>()) ASSERT_NEAR(value, 1, 1e-5);
}

// Of equal values the mean is the value, whatever their sum is rounded to.
TEST_P(RowNormFaults, D001_ConstantLongRowsGiveBeta) {
  for (const int64_t m : {40'000, 131'072, 2'000'000}) {
    for (const double c : {1000.1, 10922.7, 20000.3}) {
      const Tensor y = layer_norm(filled({2, m}, c, DType::f32), {m});
      for (const double value : y.to_vector<double>()) ASSERT_EQ(value, 0) << m << " of " << c;
    }
  }
}

TEST_P(RowNormFaults, D002_LargeMeansDoNotCancel) {
  Tensor x = leaf({19999.5, 20000, 20000.5, 20000}, {1, 4}, DType::f32);
  const Tensor y = layer_norm(x, {4});
  expect_near(y, {-1.414157, 0, 1.414157, 0}, 1e-4);
  y.backward(tensor({1, 0, 0, 0}, {1, 4}, DType::f32));
  expect_near(x.grad(), {0.7071916, -0.7070785, 0.7069654, -0.7070785}, 1e-4);
}

TEST_P(RowNormFaults, D003_NonCentredHalfPrecision) {
  for (const DType dtype : {DType::bf16, DType::f32})
    expect_near(layer_norm(tensor({4.875, 5.0, 5.125, 5.0}, {1, 4}, dtype), {4}),
                {-1.413309, 0, 1.413309, 0}, dtype == DType::bf16 ? 4e-3 : 1e-5);
}

TEST_P(RowNormFaults, D004_LongSumsKeepTheirDigits) {
  std::vector<float> values(1 << 24);
  for (size_t i = 0; i < values.size(); ++i) values[i] = i % 2 != 0 ? 0.3f : 0.1f;
  const Tensor x =
      Tensor::from_vector(values, {1 << 24}, {.dtype = DType::f32, .device = GetParam()});
  const std::vector<float> y = layer_norm(x, {1 << 24}).to_vector<float>();
  for (size_t i = 0; i < y.size(); i += 65537)
    ASSERT_NEAR(y[i], i % 2 != 0 ? 0.9995004 : -0.9995004, 1e-4);
  const std::vector<float> z = rms_norm(x, {1 << 24}, {}, 0.0).to_vector<float>();
  for (size_t i = 0; i < z.size(); i += 65537) ASSERT_NEAR(z[i], values[i] / std::sqrt(0.05), 1e-4);
}

TEST_P(RowNormFaults, D005_OverflowOfTheVarianceGivesBeta) {
  // (1e30)² is beyond f32: rstd becomes 0, and with it y - beta and every gradient of x.
  Tensor x = leaf({1e30, -1e30, 1e30, -1e30}, {1, 4}, DType::f32);
  Tensor gamma = leaf({1, 2, 3, 4}, {4}, DType::f32);
  const Tensor beta = tensor({0.5, 1, 2, 3}, {4}, DType::f32);
  const Tensor y = layer_norm(x, {4}, gamma, beta);
  expect_near(y, {0.5, 1, 2, 3}, 0);
  y.backward(tensor({1, 2, 3, 5}, {1, 4}, DType::f32));
  expect_near(x.grad(), Values(4, 0), 0);
  expect_near(gamma.grad(), Values(4, 0), 0);
  expect_near(rms_norm(x.detach(), {4}, gamma.detach()), Values(4, 0), 0);
  Values halves(8192, 0.0);  // each half for itself has no variance
  std::fill(halves.begin() + 4096, halves.end(), 1e25);
  expect_near(layer_norm(tensor(halves, {1, 8192}, DType::f32), {8192}), Values(8192, 0), 0);
}

TEST_P(RowNormFaults, D006_SquaresOfF16DoNotOverflow) {
  for (const double value : {300.0, 8000.0}) {
    const Tensor x = tensor(repeated({value, -value}, 4), {1, 8}, DType::f16);
    expect_near(rms_norm(x, {8}, filled({8}, 1, DType::f32), 1e-5), repeated({1, -1}, 4), 0);
  }
}

TEST_P(RowNormFaults, D007_RowsOfF16AccumulateInF32) {
  for (const int64_t m : {8, 511, 512, 513}) {
    Values values(static_cast<size_t>(m));
    for (size_t i = 0; i < values.size(); ++i) values[i] = i % 2 == 0 ? 256 : -256;
    const Values got = layer_norm(tensor(values, {1, m}, DType::f16), {m}).to_vector<double>();
    const ref::NormForward want = ref::layer_norm(ref::array({1, m}, values), 1, {}, {}, 1e-5);
    for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(got[i], want.y.data[i], 1e-3);
    if (m % 2 == 0) {
      EXPECT_EQ(got, repeated({1, -1}, m / 2));
    }
  }
}

TEST_P(RowNormFaults, D008_EpsilonReachesTheKernel) {
  expect_near(rms_norm(tensor(Values(4, 0.02), {1, 4}, DType::f32), {4}, {}, 1e-6),
              Values(4, 0.9987523), 1e-6);
  expect_near(layer_norm(tensor({0, 2}, {1, 2}), {2}, {}, {}, 3), {-0.5, 0.5}, 1e-12);
}

TEST_P(RowNormFaults, D009_EpsilonIsInsideTheRoot) {
  expect_near(layer_norm(tensor({0, 0.004}, {1, 2}), {2}), {-0.5345225, 0.5345225}, 1e-7);
}

TEST_P(RowNormFaults, D015_NoRowsAndEmptyRows) {
  for (const bool with_mean : {true, false}) {
    Tensor x = leaf({}, {0, 8}), gamma = leaf(Values(8, 1), {8}), beta = leaf(Values(8, 0), {8});
    const Tensor y = with_mean ? layer_norm(x, {8}, gamma, beta) : rms_norm(x, {8}, gamma);
    EXPECT_EQ(to_string(y.shape()), "[0,8]");
    y.backward(tensor({}, {0, 8}));
    EXPECT_EQ(to_string(x.grad().shape()), "[0,8]");
    expect_near(gamma.grad(), Values(8, 0), 0);
    if (with_mean) expect_near(beta.grad(), Values(8, 0), 0);
    expect_near(relu(tensor({-1, 2}, {2})), {0, 2}, 0);

    Tensor empty = leaf({}, {3, 0}), no_gamma = leaf({}, {0});
    const Tensor z = with_mean ? layer_norm(empty, {0}, no_gamma) : rms_norm(empty, {0}, no_gamma);
    EXPECT_EQ(to_string(z.shape()), "[3,0]");
    z.backward(tensor({}, {3, 0}));
    EXPECT_EQ(to_string(empty.grad().shape()), "[3,0]");
    EXPECT_EQ(to_string(no_gamma.grad().shape()), "[0]");
    expect_near(relu(tensor({-1, 2}, {2})), {0, 2}, 0);
  }
}

TEST_P(RowNormFaults, D018_SingleElementsHaveNoGradient) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Tensor x = leaf({0.1, 0.7, 123.4}, {3, 1}, dtype);
    Tensor gamma = leaf({3}, {1}, DType::f32), beta = leaf({0.5}, {1}, DType::f32);
    const Tensor y = layer_norm(x, {1}, gamma, beta);
    expect_near(y, {0.5, 0.5, 0.5}, 0);
    y.backward(tensor({1, 2, 4}, {3, 1}, dtype));
    expect_near(x.grad(), {0, 0, 0}, 0);
    expect_near(gamma.grad(), {0}, 0);
    expect_near(beta.grad(), {7}, 0);
  }
}

TEST_P(RowNormFaults, D020_RowsAreAllLeadingAxes) {
  Values x_values(12), up(12, 0.0);
  for (size_t i = 0; i < 12; ++i) x_values[i] = static_cast<double>(i * i);
  up[0] = up[11] = 1;
  Tensor x = leaf(x_values, {2, 2, 3}), gamma = leaf({1, 1, 1}, {3}), beta = leaf({0, 0, 0}, {3});
  layer_norm(x, {3}, gamma, beta).backward(tensor(up, {2, 2, 3}));
  expect_near(x.grad(),
              {0.203659, -0.271545, 0.0678853, 0, 0, 0, 0, 0, 0, 0.010168, -0.0193676, 0.0091996},
              1e-6);
  expect_near(gamma.grad(), {-0.980579, 0, 1.24464}, 1e-5);
  expect_near(beta.grad(), {1, 0, 1}, 0);
}

TEST_P(RowNormFaults, D023_AllThreeGradientsTogether) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    Tensor x = leaf({1, 2, 4, 0, 3, 9}, {2, 3}, dtype), gamma = leaf({1, 2, -1}, {3}, dtype);
    Tensor beta = leaf({0, 0, 0}, {3}, dtype);
    layer_norm(x, {3}, gamma, beta).backward(tensor({1, -2, 5, 0, 1, 2}, {2, 3}, dtype));
    expect_near(x.grad(), {1.03087, -1.54629, 0.515415, -0.305441, 0.458162, -0.152721}, 1e-5);
    expect_near(gamma.grad(), {-1.06904, 0.26726, 9.35412}, 1e-5);
    expect_near(beta.grad(), {1, -1, 7}, 1e-6);
  }
}

TEST_P(RowNormFaults, D024_UpstreamIsOnlyRead) {
  const Values up{3, -1, 2};
  Values first_dx;
  for (const bool keeps_upstream : {false, true}) {
    Tensor x = leaf({2, 4, 9}, {1, 3}), gamma = leaf({1, 1, 1}, {3}), beta = leaf({0, 0, 0}, {3});
    const Tensor y = layer_norm(x, {3}, gamma, beta);
    if (keeps_upstream) {
      const Tensor kept = tensor(up, {1, 3});
      y.backward(kept);
      expect_near(kept, up, 0);
      EXPECT_EQ(x.grad().to_vector<double>(), first_dx);
    } else {
      y.backward(tensor(up, {1, 3}));
      first_dx = x.grad().to_vector<double>();
    }
    expect_near(beta.grad(), up, 0);
  }
}

TEST_P(RowNormFaults, D025_GradientsAddUp) {
  Tensor x = leaf({1, 2, 4}, {1, 3}), gamma = leaf({1, 1, 1}, {3}), beta = leaf({0, 0, 0}, {3});
  for (int run = 0; run < 3; ++run)
    layer_norm(x, {3}, gamma, beta).backward(tensor({1, 0, 2}, {1, 3}));
  expect_near(x.grad(), {1.37447, -2.06173, 0.687252}, 1e-5);
  expect_near(beta.grad(), {3, 0, 6}, 0);
}

TEST_P(RowNormFaults, D026_NoRowIsLost) {
  const double one = 1.2247357;  // of [-1, 0, 1] with eps 1e-5
  for (const int64_t rows : {1023, 1025, 1031, 4097}) {
    const double n = static_cast<double>(rows);
    const Values values = repeated({-1, 0, 1}, rows);
    for (const bool with_mean : {true, false}) {
      Tensor x = leaf(values, {rows, 3}, DType::f32);
      Tensor gamma = leaf({1, 1, 1}, {3}, DType::f32), beta = leaf({0, 0, 0}, {3}, DType::f32);
      const Tensor y = with_mean ? layer_norm(x, {3}, gamma, beta) : rms_norm(x, {3}, gamma, 1e-5);
      y.backward(filled({rows, 3}, 1, DType::f32));
      expect_near(gamma.grad(), {-n * one, 0, n * one}, 1e-5 * n * one);
      if (with_mean) expect_near(beta.grad(), {n, n, n}, 0);
    }
  }
}

TEST_P(RowNormFaults, D028_LayersBeforeANormLearn) {
  for (const bool with_mean : {true, false}) {
    nn::Linear linear(2, 2);
    nn::LayerNorm layer({2});
    nn::RMSNorm rms({2});
    linear.to(GetParam());
    layer.to(GetParam());
    rms.to(GetParam());
    const Tensor hidden = linear(tensor({1, 2, -3, 0.5}, {2, 2}, DType::f32));
    const Tensor y = with_mean ? layer(hidden) : rms(hidden);
    sum(y * y * tensor({1, 3}, {2}, DType::f32)).backward();
    const auto moves = [](const Tensor& parameter) {
      ASSERT_TRUE(parameter.grad().defined());
      const Values grad = parameter.grad().to_vector<double>();
      EXPECT_TRUE(std::any_of(grad.begin(), grad.end(), [](double g) { return g != 0; }));
    };
    moves(linear.weight);
    moves(with_mean ? layer.weight : rms.weight);
  }
}

TEST_P(RowNormFaults, D031_ParameterGradientsAccumulateInF32) {
  const int64_t rows = 4096;
  Tensor x = leaf(Values(rows * 8, 1), {rows, 8}, DType::bf16);
  Tensor gamma = leaf(Values(8, 1), {8}, DType::f32), beta = leaf(Values(8, 0), {8}, DType::f32);
  const Tensor up = filled({rows, 8}, 1, DType::bf16);
  rms_norm(x, {8}, gamma, 0.0).backward(up);
  expect_near(gamma.grad(), Values(8, 4096), 0);
  layer_norm(x, {8}, {}, beta).backward(up);
  expect_near(beta.grad(), Values(8, 4096), 0);
}

TEST_P(RowNormFaults, D103_MoreThan65535Rows) {
  for (const int64_t rows : {65536, 65537}) {
    Tensor x = leaf(repeated({0, 2}, rows), {rows, 2}, DType::f32);
    Tensor beta = leaf({0, 0}, {2}, DType::f32);
    const Tensor y = layer_norm(x, {2}, {}, beta, 0);
    EXPECT_EQ(y.to_vector<double>(), repeated({-1, 1}, rows));
    y.backward(filled({rows, 2}, 1, DType::f32));
    expect_near(beta.grad(), Values(2, static_cast<double>(rows)), 0);
    expect_near(x.grad().slice(0, rows - 1, rows), {0, 0}, 0);
  }
}

}  // namespace
}  // namespace gradus
