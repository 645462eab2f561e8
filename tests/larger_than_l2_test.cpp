// Tensors that do not fit the second-level cache, for which some kernels have a form of their own:
// they give, to the bit, what the tensor's parts give, which fit.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>

#include "autograd/ops/activation.h"
#include "autograd/ops/arithmetic.h"
#include "autograd/ops/layer_norm.h"
#include "autograd/ops/reduce.h"
#include "autograd/ops/rms_norm.h"
#include "core/generator.h"
#include "cuda/context.h"
#include "tests/support/gpu.h"

namespace gradus {
namespace {

struct Rows {
  const char* name;
  int64_t m;
  Tensor (*op)(const Tensor& x, const Tensor& gamma, const Tensor& beta);
  bool is_map = false;
};
void PrintTo(const Rows& rows, std::ostream* out) { *out << rows.name; }

Tensor layer(const Tensor& x, const Tensor& gamma, const Tensor& beta) {
  return layer_norm(x, {x.size(1)}, gamma, beta);
}
Tensor rms(const Tensor& x, const Tensor& gamma, const Tensor&) {
  return rms_norm(x, {x.size(1)}, gamma);
}
// With a bit per element, for the gradient.
template <Tensor (*f)(const Tensor& x)>
Tensor map(const Tensor& x, const Tensor&, const Tensor&) {
  return f(x);
}
Tensor leaky(const Tensor& x) { return leaky_relu(x); }

// Rows of each number of threads and packs, whole and with threads that have less; maps with a rest
// that fills no pack.
const Rows kRows[] = {
    {"Layer1024", 1024, layer},
    {"Layer2048", 2048, layer},
    {"Layer4096", 4096, layer},
    {"Layer1008", 1008, layer},
    {"Layer2040", 2040, layer},
    {"Layer4088", 4088, layer},
    {"Rms1024", 1024, rms},
    {"Rms2048", 2048, rms},
    {"Rms4096", 4096, rms},
    {"Rms1008", 1008, rms},
    {"Rms2040", 2040, rms},
    {"Rms4088", 4088, rms},
    {"Relu1024", 1024, map<relu>, true},
    {"Relu1003", 1003, map<relu>, true},
    {"Relu6Of1003", 1003, map<relu6>, true},
    {"LeakyRelu1003", 1003, map<leaky>, true},
    {"Hardsigmoid1003", 1003, map<hardsigmoid>, true},
};

class LargerThanL2Cuda : public test::GpuTest, public testing::WithParamInterface<Rows> {};
INSTANTIATE_TEST_SUITE_P(Ops, LargerThanL2Cuda, testing::ValuesIn(kRows),
                         [](const auto& info) { return info.param.name; });

void expect_equal(const Tensor& a, const Tensor& b, const char* what) {
  EXPECT_EQ(norm2(sub(a, b), {0, 1}).item<double>(), 0) << what;
  EXPECT_GT(norm2(a, {0, 1}).item<double>(), 0) << what << ": zeros say nothing";
}

// x: [rows, m]
void expect_parts_agree(const Rows& of, int64_t rows, DType dtype) {
  const TensorOptions on_gpu{.dtype = dtype, .device = kCuda};
  const TensorOptions parameter{.dtype = acc_dtype(dtype), .device = kCuda};
  const Tensor gamma = randn({of.m}, parameter), beta = randn({of.m}, parameter);
  const bool backward = of.is_map;  // a row's gradient may be added up in another order
  const Tensor x = randn({rows, of.m}, on_gpu).set_requires_grad(backward);
  const Tensor dy = randn({rows, of.m}, on_gpu), y = of.op(x, gamma, beta);
  if (backward) y.backward(dy);
  const int64_t part = rows / 3 + 1;
  for (int64_t begin = 0; begin < rows; begin += part) {
    const int64_t end = std::min(rows, begin + part);
    const Tensor own = x.detach().slice(0, begin, end).set_requires_grad(backward);
    const Tensor y_own = of.op(own, gamma, beta);
    expect_equal(y.detach().slice(0, begin, end), y_own.detach(), "y");
    if (!backward) continue;
    y_own.backward(dy.slice(0, begin, end));
    expect_equal(x.grad().slice(0, begin, end), own.grad(), "dx");
  }
}

TEST_P(LargerThanL2Cuda, GivesWhatItsPartsGive) {
  const Rows& of = GetParam();
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    if (dtype == DType::f64 && !of.is_map) continue;  // rows of f64 have no form of their own
    const int64_t fit = cuda().info().l2_bytes / (of.m * size_of(dtype)) / 4 * 4;
    std::vector<int64_t> sizes{fit + 4, fit + 5};     // in whole blocks of rows, and not
    if (of.is_map) sizes.push_back(fit / 4 * 3 + 1);  // x fits, x and y do not
    for (const int64_t rows : sizes) {
      SCOPED_TRACE(concat(dtype, ", ", rows, " rows"));
      expect_parts_agree(of, rows, dtype);
    }
  }
}

}  // namespace
}  // namespace gradus
