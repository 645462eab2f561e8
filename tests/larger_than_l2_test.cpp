// Tensors that do not fit the second-level cache, for which some kernels have a form of their own:
// they give, to the bit, what the tensor's parts give, which fit.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>

#include "autograd/ops/activation.h"
#include "autograd/ops/arithmetic.h"
#include "autograd/ops/group_norm.h"
#include "autograd/ops/layer_norm.h"
#include "autograd/ops/reduce.h"
#include "autograd/ops/rms_norm.h"
#include "autograd/ops/softmax.h"
#include "core/generator.h"
#include "core/ops/reduce.h"
#include "cuda/context.h"
#include "tests/support/gpu.h"

namespace gradus {
namespace {

struct Rows {
  const char* name;
  int64_t m;
  Tensor (*op)(const Tensor& x, const Tensor& gamma, const Tensor& beta);
  bool alone = false;  // a row's gradient is the same to the bit, whatever rows are beside it
};
void PrintTo(const Rows& rows, std::ostream* out) { *out << rows.name; }

Tensor layer(const Tensor& x, const Tensor& gamma, const Tensor& beta) {
  return layer_norm(x, {x.size(1)}, gamma, beta);
}
Tensor rms(const Tensor& x, const Tensor& gamma, const Tensor&) {
  return rms_norm(x, {x.size(1)}, gamma);
}
template <Tensor (*f)(const Tensor& x)>
Tensor without(const Tensor& x, const Tensor&, const Tensor&) {
  return f(x);
}
Tensor leaky(const Tensor& x) { return leaky_relu(x); }
Tensor exact_gelu(const Tensor& x) { return gelu(x); }
Tensor softmax_axis1(const Tensor& x) { return softmax(x, 1); }
Tensor log_softmax_axis1(const Tensor& x) { return log_softmax(x, 1); }
Tensor var_axis1(const Tensor& x) { return var(x, {1}); }
Tensor std_axis1(const Tensor& x) { return gradus::std(x, {1}); }
Tensor max_axis1(const Tensor& x) { return max(x, {1}); }
Tensor prod_axis1(const Tensor& x) { return prod(x, {1}); }
Tensor norm2_axis1(const Tensor& x) { return norm2(x, {1}); }
Tensor logsumexp_axis1(const Tensor& x) { return logsumexp(x, {1}); }

// Each row as an image of so many channels and pixels.
template <int kChannels, int kHeight, Tensor (*f)(const Tensor& x)>
Tensor image(const Tensor& x, const Tensor&, const Tensor&) {
  return f(x.reshape({x.size(0), kChannels, kHeight, -1})).reshape({x.size(0), -1});
}
template <int kGroups>
Tensor groups(const Tensor& x) {
  return group_norm(x, kGroups);
}
template <int kGroups>
Tensor groups_last(const Tensor& x) {
  return group_norm(x.contiguous(MemoryFormat::channels_last), kGroups);
}

// Rows of each number of threads and packs, whole and with threads that have less; maps, with a bit
// per element for the gradient and without, that have a rest which fills no pack; sets that a
// block, a warp or its registers hold.
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
    {"Relu1024", 1024, without<relu>, true},
    {"Relu1003", 1003, without<relu>, true},
    {"Relu6Of1003", 1003, without<relu6>, true},
    {"LeakyRelu1003", 1003, without<leaky>, true},
    {"Hardsigmoid1003", 1003, without<hardsigmoid>, true},
    {"Gelu1003", 1003, without<exact_gelu>, true},
    {"Softmax4096", 4096, without<softmax_axis1>, true},
    {"Softmax1000", 1000, without<softmax_axis1>, true},
    {"Softmax128", 128, without<softmax_axis1>, true},
    {"SoftmaxChannels", 64 * 784, image<64, 28, softmax_axis1>, true},
    {"LogSoftmaxChannels", 48 * 784, image<48, 28, log_softmax_axis1>, true},
    {"GroupNormOfBlocks", 32 * 784, image<32, 28, groups<8>>, true},
    {"GroupNormOfWarps", 32 * 256, image<32, 16, groups<4>>, true},
    {"InstanceNormOfBlocks", 16 * 3136, image<16, 56, groups<16>>, true},
    {"InstanceNormOfWarps", 16 * 256, image<16, 16, groups<16>>, true},
    {"GroupNormChannelsLast", 64 * 49, image<64, 7, groups_last<16>>, true},
    {"VarOfChannels", 128 * 784, image<128, 28, var_axis1>, true},
    {"StdOfChannels", 64 * 784, image<64, 28, std_axis1>, true},
    {"MaxOfChannels", 32 * 784, image<32, 28, max_axis1>, true},
    {"ProdOfChannels", 16 * 784, image<16, 28, prod_axis1>, true},
    {"Norm2OfChannels", 64 * 784, image<64, 28, norm2_axis1>, true},
    {"LogSumExpOfChannels", 64 * 784, image<64, 28, logsumexp_axis1>, true},
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
  const Tensor x = randn({rows, of.m}, on_gpu).set_requires_grad(of.alone);
  const Tensor y = of.op(x, gamma, beta), dy = randn(y.shape(), on_gpu);
  if (of.alone) y.backward(dy);
  const int64_t part = rows / 3 + 1;
  for (int64_t begin = 0; begin < rows; begin += part) {
    const int64_t end = std::min(rows, begin + part);
    const Tensor own = x.detach().slice(0, begin, end).set_requires_grad(of.alone);
    const Tensor y_own = of.op(own, gamma, beta);
    expect_equal(y.detach().slice(0, begin, end), y_own.detach(), "y");
    if (!of.alone) continue;
    y_own.backward(dy.slice(0, begin, end));
    expect_equal(x.grad().slice(0, begin, end), own.grad(), "dx");
  }
}

TEST_P(LargerThanL2Cuda, GivesWhatItsPartsGive) {
  const Rows& of = GetParam();
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    if (dtype == DType::f64 && !of.alone) continue;  // norms of f64 rows have no form of their own
    const int64_t fit = cuda().info().l2_bytes / (of.m * size_of(dtype)) / 4 * 4;
    std::vector<int64_t> sizes{fit + 4, fit + 5};    // in whole blocks of rows, and not
    if (of.alone) sizes.push_back(fit / 4 * 3 + 1);  // x fits, x and y do not
    for (const int64_t rows : sizes) {
      SCOPED_TRACE(concat(dtype, ", ", rows, " rows"));
      expect_parts_agree(of, rows, dtype);
    }
  }
}

class LargeSetsCuda : public test::GpuTest {};

TEST_F(LargeSetsCuda, AGradientThatFindsTheMeanTakesAnyUpstream) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const TensorOptions options{.dtype = dtype, .device = kCuda};
    const int64_t rows = cuda().info().l2_bytes / (64 * 784 * size_of(dtype)) + 1;
    const Tensor x = randn({rows, 64, 28, 28}, options), y = var(x, {1}, 1, true);
    EXPECT_TRUE(finds_statistics(cuda(), reduce_kind<reductions::Var>, x.raw(), y.raw()));
    const Tensor longer = randn({y.numel() + 1}, options);
    const Tensor unaligned = longer.slice(0, 1, y.numel() + 1).reshape(y.shape());
    std::vector<Tensor> gradients;
    for (const Tensor& dy : {unaligned, unaligned.clone()}) {
      const Tensor from = x.detach().set_requires_grad(true);
      var(from, {1}, 1, true).backward(dy);
      gradients.push_back(from.grad().reshape({rows, -1}));
    }
    expect_equal(gradients[0], gradients[1], "dx");
  }
}

}  // namespace
}  // namespace gradus
