// Tensors that do not fit the second-level cache, for which some kernels have a form of their own:
// they give, to the bit, what the tensor's parts give, which fit.
#include <gtest/gtest.h>

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
};
void PrintTo(const Rows& rows, std::ostream* out) { *out << rows.name; }

Tensor layer(const Tensor& x, const Tensor& gamma, const Tensor& beta) {
  return layer_norm(x, {x.size(1)}, gamma, beta);
}
Tensor rms(const Tensor& x, const Tensor& gamma, const Tensor&) {
  return rms_norm(x, {x.size(1)}, gamma);
}
Tensor rectify(const Tensor& x, const Tensor&, const Tensor&) { return relu(x); }

// Rows of each number of threads and packs, whole and with threads that have less; a map with a
// rest that fills no pack.
const Rows kRows[] = {
    {"Layer1024", 1024, layer}, {"Layer2048", 2048, layer},  {"Layer4096", 4096, layer},
    {"Layer1008", 1008, layer}, {"Layer4088", 4088, layer},  {"Rms1024", 1024, rms},
    {"Rms2048", 2048, rms},     {"Rms4096", 4096, rms},      {"Rms1008", 1008, rms},
    {"Rms4088", 4088, rms},     {"Relu1024", 1024, rectify}, {"Relu1003", 1003, rectify},
};

class LargerThanL2Cuda : public test::GpuTest, public testing::WithParamInterface<Rows> {};
INSTANTIATE_TEST_SUITE_P(Ops, LargerThanL2Cuda, testing::ValuesIn(kRows),
                         [](const auto& info) { return info.param.name; });

void expect_equal(const Tensor& a, const Tensor& b, const char* what) {
  EXPECT_EQ(norm2(sub(a, b), {0, 1}).item<double>(), 0) << what;
  EXPECT_GT(norm2(a, {0, 1}).item<double>(), 0) << what << ": zeros say nothing";
}

TEST_P(LargerThanL2Cuda, GivesWhatItsPartsGive) {
  const auto& [name, m, op] = GetParam();
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    SCOPED_TRACE(to_string(dtype));
    const TensorOptions on_gpu{.dtype = dtype, .device = kCuda};
    const TensorOptions parameter{.dtype = acc_dtype(dtype), .device = kCuda};
    const int64_t rows = cuda().info().l2_bytes / (m * size_of(dtype)) + 5, part = rows / 3 + 1;
    const Tensor gamma = randn({m}, parameter), beta = randn({m}, parameter);
    const Tensor x = randn({rows, m}, on_gpu).set_requires_grad(op == rectify);
    const Tensor dy = randn({rows, m}, on_gpu), y = op(x, gamma, beta);
    if (op == rectify) y.backward(dy);  // a row's gradient may be added up in another order
    for (int64_t begin = 0; begin < rows; begin += part) {
      const int64_t end = std::min(rows, begin + part);
      const Tensor own = x.detach().slice(0, begin, end).set_requires_grad(op == rectify);
      const Tensor y_own = op(own, gamma, beta);
      expect_equal(y.detach().slice(0, begin, end), y_own.detach(), "y");
      if (op != rectify) continue;
      y_own.backward(dy.slice(0, begin, end));
      expect_equal(x.grad().slice(0, begin, end), own.grad(), "dx");
    }
  }
}

}  // namespace
}  // namespace gradus
