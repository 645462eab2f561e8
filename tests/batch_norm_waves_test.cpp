// Batch normalization of tensors that do not fit the second-level cache, whose channels one launch
// sums and writes in turns: as on the CPU, and with the same bits each time.
#include <cmath>

#include "autograd/ops/batch_norm.h"
#include "core/generator.h"
#include "cuda/context.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/gpu.h"

namespace gradus {
namespace {

struct Images {
  const char* name;
  Shape one;  // [1, c, h, w]
  DType dtype;

  // So many that they do not fit the second-level cache.
  Shape shape() const {
    Shape all = one;
    all[0] = cuda().info().l2_bytes / (one.numel() * size_of(dtype)) + 3;
    return all;
  }
};
void PrintTo(const Images& images, std::ostream* out) { *out << images.name; }

// Chunks and slices that end within a row or have but a few packs; few and many channels.
const Images kImages[] = {
    {"F32", {1, 64, 28, 28}, DType::f32},   {"F32Few", {1, 36, 36, 36}, DType::f32},
    {"F64", {1, 64, 28, 30}, DType::f64},   {"F16", {1, 64, 28, 28}, DType::f16},
    {"Bf16", {1, 64, 28, 28}, DType::bf16}, {"Bf16Many", {1, 90, 28, 34}, DType::bf16},
};

class BatchNormWavesCuda : public test::GpuTest, public testing::WithParamInterface<Images> {};
INSTANTIATE_TEST_SUITE_P(Images, BatchNormWavesCuda, testing::ValuesIn(kImages),
                         [](const auto& info) { return info.param.name; });

struct Inputs {
  Tensor x, dy, gamma, beta;
  Inputs to(Device device) const {
    return {x.to(device), dy.to(device), gamma.to(device), beta.to(device)};
  }
};

struct Result {
  const char* name;
  Tensor of;
  // The largest of the terms of a sum that may cancel.
  double scale = 0;
};

// Of two steps, the second of which takes the average of all batches for its running statistics;
// those have every other place of their tensor.
std::vector<Result> results(const Inputs& in) {
  const Tensor x = in.x.detach().set_requires_grad(true);
  const Tensor gamma = in.gamma.detach().set_requires_grad(true);
  const Tensor beta = in.beta.detach().set_requires_grad(true);
  const TensorOptions& parameter = gamma.options();
  const Tensor running = Tensor::ones({2 * gamma.numel()}, parameter);
  const BatchNormState state{Tensor::zeros(gamma.shape(), parameter),
                             running.slice(0, 0, running.numel(), 2),
                             Tensor::zeros({}, {.dtype = DType::i64, .device = parameter.device})};
  NormStatistics saved;
  const Tensor y = batch_norm(x, gamma, beta, state, {}, &saved);
  y.backward(in.dy);
  batch_norm(in.dy, {}, {}, state, {.cumulative = true});
  const Tensor evaluated = batch_norm(in.x, in.gamma, in.beta, state, {.training = false});
  return {{"y", y.detach()},
          {"dx", x.grad()},
          {"dgamma", gamma.grad(), 32},
          {"dbeta", beta.grad(), 8},
          {"mean", saved.mean, 1},
          {"rstd", saved.rstd},
          {"running_mean", state.running_mean, 1},
          {"running_var", running},
          {"batches", state.batches.to(DType::f64)},
          {"y of evaluation", evaluated}};
}

TEST_P(BatchNormWavesCuda, AgreeWithTheCpu) {
  const DType dtype = GetParam().dtype;
  const Shape shape = GetParam().shape();
  manual_seed(3);
  const TensorOptions parameter{.dtype = acc_dtype(dtype)};
  const Inputs in{randn(shape, {.dtype = dtype}), randn(shape, {.dtype = dtype}),
                  randn({shape[1]}, parameter), randn({shape[1]}, parameter)};
  const std::vector<Result> want = results(in), got = results(in.to(kCuda));
  const int64_t m = shape.numel() / shape[1];
  for (size_t i = 0; i < want.size(); ++i) {
    const std::vector<double> values = want[i].of.to_vector<double>();
    double scale = want[i].scale;
    for (const double value : values) scale = std::max(scale, std::abs(value));
    EXPECT_TRUE(agrees(got[i].of.to_vector<double>(), values, want[i].of.dtype(), m, scale))
        << want[i].name;
  }
}

TEST_P(BatchNormWavesCuda, HaveTheSameBits) {
  const DType dtype = GetParam().dtype;
  const Shape shape = GetParam().shape();
  const TensorOptions on_gpu{.dtype = dtype, .device = kCuda};
  const TensorOptions parameter{.dtype = acc_dtype(dtype), .device = kCuda};
  const Inputs in{randn(shape, on_gpu), randn(shape, on_gpu), randn({shape[1]}, parameter),
                  randn({shape[1]}, parameter)};
  const std::vector<Result> once = results(in);
  for (int run = 0; run < 3; ++run) {
    const std::vector<Result> again = results(in);
    for (size_t i = 0; i < once.size(); ++i)
      EXPECT_EQ(again[i].of.to_vector<double>(), once[i].of.to_vector<double>()) << once[i].name;
  }
}

}  // namespace
}  // namespace gradus
