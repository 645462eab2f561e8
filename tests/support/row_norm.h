// What the tests of layer_norm and rms_norm share: a suite that runs on both devices, and both ops
// under one call.
#pragma once

#include <cmath>
#include <vector>

#include "autograd/ops/layer_norm.h"
#include "autograd/ops/rms_norm.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/each_device.h"
#include "tests/support/golden.h"
#include "tests/support/op_modes.h"

namespace gradus::test {

using Values = std::vector<double>;

inline void expect_near(const Tensor& got, const Values& want, double tolerance) {
  const Values values = got.to_vector<double>();
  ASSERT_EQ(values.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(want[i])) {
      EXPECT_TRUE(std::isnan(values[i])) << "at " << i << ": " << values[i];
    } else {
      EXPECT_NEAR(values[i], want[i], tolerance) << "at " << i;
    }
  }
}

// The values of a row again and again.
inline Values repeated(const Values& row, int64_t times) {
  Values values;
  values.reserve(row.size() * static_cast<size_t>(times));
  for (int64_t i = 0; i < times; ++i) values.insert(values.end(), row.begin(), row.end());
  return values;
}

inline constexpr DType kFloatingTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16};

class RowNorm : public test::EachDevice {
 protected:
  Tensor tensor(const Values& values, const Shape& shape, DType dtype = DType::f64) {
    return Tensor::from_vector(values, shape, {.dtype = dtype, .device = GetParam()});
  }
  Tensor leaf(const Values& values, const Shape& shape, DType dtype = DType::f64) {
    return tensor(values, shape, dtype).set_requires_grad(true);
  }
  Tensor filled(const Shape& shape, double value, DType dtype = DType::f64) {
    return Tensor::full(shape, value, {.dtype = dtype, .device = GetParam()});
  }
  template <bool kMean>
  void check_whole_rows();
};

// Rows that fill their threads and blocks have kernels without bounds on CUDA in 16 bits: of
// layer_norm (kMean) or rms_norm, with the bits of seven such rows and of parameters not given.
template <bool kMean>
void RowNorm::check_whole_rows() {
  for (const DType dtype : kFloatingTypes) {
    for (const int64_t m : {1024, 2048, 4096}) {
      SCOPED_TRACE(concat(dtype, " ", m));
      Values values(static_cast<size_t>(8 * m)), weights(static_cast<size_t>(m));
      for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(0.1 + 1.7 * double(i)) + 0.5;
      for (size_t i = 0; i < weights.size(); ++i) weights[i] = std::cos(0.3 * double(i));
      const auto norm = [&](const Tensor& x, const Tensor& gamma,
                            [[maybe_unused]] const Tensor& beta) {
        return kMean ? layer_norm(x, {m}, gamma, beta) : rms_norm(x, {m}, gamma);
      };
      const DType parameter = acc_dtype(dtype);
      const Tensor x = tensor(values, {8, m}, dtype), gamma = tensor(weights, {m}, parameter);
      const Tensor beta = tensor(Values(weights.rbegin(), weights.rend()), {m}, parameter);
      const Tensor ones = filled({m}, 1, parameter), zeros = filled({m}, 0, parameter);
      const Tensor y = norm(x, gamma, beta), no_beta = norm(x, gamma, {}),
                   no_gamma = norm(x, {}, beta);
      const Values want = y.to_vector<double>();
      expect_near(norm(x.slice(0, 0, 7), gamma, beta), Values(want.begin(), want.end() - m), 0);
      expect_near(norm(x, gamma, zeros), no_beta.to_vector<double>(), 0);
      expect_near(norm(x, ones, beta), no_gamma.to_vector<double>(), 0);
    }
  }
}

// One case of PyTorch's: y and every gradient of layer_norm (kMean) or rms_norm.
template <bool kMean>
void check_golden(const ref::Json& golden, Device device) {
  SCOPED_TRACE(golden.at("name").get<std::string>());
  const auto input = [&](const std::string& key) {
    const ref::Array array = ref::golden_array(golden.at("inputs"), key);
    if (array.empty()) return Tensor();
    return Tensor::from_vector(array.data, array.shape, {.dtype = DType::f64, .device = device})
        .set_requires_grad(true);
  };
  const char* keys[] = {"x", "gamma", "beta"};
  const Tensor leaves[] = {input(keys[0]), input(keys[1]), kMean ? input(keys[2]) : Tensor()};
  Shape normalized;
  for (int axes = golden.at("args").at("normalized_axes"); axes > 0; --axes)
    normalized.append(leaves[0].size(-axes));
  const double eps = golden.at("args").at("eps");
  const Tensor y = kMean ? layer_norm(leaves[0], normalized, leaves[1], leaves[2], eps)
                         : rms_norm(leaves[0], normalized, leaves[1], eps);
  const auto expect = [&](const Tensor& got, const char* group, const std::string& key) {
    const ref::Array want = ref::golden_array(golden.at(group), key);
    EXPECT_TRUE(agrees(got.to_vector<double>(), want.data, DType::f64, got.numel())) << key;
  };
  const ref::Array dy = ref::golden_array(golden.at("dy"));
  y.backward(Tensor::from_vector(dy.data, dy.shape, {.dtype = DType::f64, .device = device}));
  expect(y, "outputs", "y");
  for (int i = 0; i < 3; ++i) {
    if (leaves[i].defined()) expect(leaves[i].grad(), "gradients", keys[i]);
  }
}

}  // namespace gradus::test
