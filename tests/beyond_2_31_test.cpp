// Tensors of more than 2^31 elements, whose offsets no 32-bit integer holds: what an op does at
// their end must equal what it does with their end alone.
#include <gtest/gtest.h>

#include <functional>

#include "autograd/ops/activation.h"
#include "autograd/ops/arithmetic.h"
#include "autograd/ops/avg_pool2d.h"
#include "autograd/ops/batch_norm.h"
#include "autograd/ops/conv2d.h"
#include "autograd/ops/cross_entropy.h"
#include "autograd/ops/dropout.h"
#include "autograd/ops/group_norm.h"
#include "autograd/ops/instance_norm.h"
#include "autograd/ops/layer_norm.h"
#include "autograd/ops/local_response_norm.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/max_pool2d.h"
#include "autograd/ops/nll_loss.h"
#include "autograd/ops/reduce.h"
#include "autograd/ops/rms_norm.h"
#include "autograd/ops/softmax.h"
#include "autograd/ops/sum.h"
#include "core/generator.h"
#include "tests/support/conv_modes.h"
#include "tests/support/gpu.h"

namespace gradus {
namespace {

using Values = std::vector<double>;
constexpr TensorOptions kHalf{.dtype = DType::f16, .device = kCuda};
constexpr TensorOptions kFloat{.dtype = DType::f32, .device = kCuda};

Tensor end_of(const Tensor& t, int64_t count) {
  return t.detach().slice(0, t.shape()[0] - count, t.shape()[0]);
}

void expect_close(const Tensor& a, const Tensor& b, const char* what) {
  const Values got = a.to_vector<double>(), want = b.to_vector<double>();
  ASSERT_EQ(got.size(), want.size()) << what;
  double largest = 0;
  for (const double v : want) largest = std::max(largest, std::abs(v));
  EXPECT_GT(largest, 0) << what << ": a comparison of zeros says nothing";
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], 4e-3 * largest) << what << " at " << i;
  }
}

// An op of x and parameters; of `rows` entries along axis 0, none of which depends on another.
using Op = std::function<Tensor(const Tensor& x, const std::vector<Tensor>& parameters)>;

struct Gradients {
  Tensor y, dx;
  std::vector<Tensor> parameters;
};

// With an upstream gradient in the last `count` entries only.
Gradients run_op(const Op& op, const Tensor& input, const std::vector<Tensor>& values,
                 int64_t count) {
  const Tensor x = input.detach().set_requires_grad(true);
  std::vector<Tensor> parameters;
  for (const Tensor& value : values) parameters.push_back(value.detach().set_requires_grad(true));
  const Tensor y = op(x, parameters);
  Tensor dy = Tensor::zeros(y.shape(), {.dtype = y.dtype(), .device = kCuda});
  Generator same(kCuda, 7);
  const Tensor end = end_of(y, count);
  end_of(dy, count).copy_(randn(end.shape(), {.dtype = y.dtype(), .device = kCuda}, &same));
  y.backward(dy);
  Gradients result{end_of(y, count), end_of(x.grad(), count), {}};
  for (const Tensor& p : parameters) result.parameters.push_back(p.grad());
  return result;
}

void expect_end_as_alone(const Tensor& x, const Op& op,
                         const std::vector<Tensor>& parameters = {}) {
  constexpr int64_t count = 3;
  ASSERT_GT(x.numel(), int64_t{1} << 31);
  const Gradients whole = run_op(op, x, parameters, count);
  const Gradients alone = run_op(op, end_of(x, count), parameters, count);
  expect_close(whole.y, alone.y, "y");
  expect_close(whole.dx, alone.dx, "dx");
  for (size_t i = 0; i < parameters.size(); ++i) {
    expect_close(whole.parameters[i], alone.parameters[i], "gradient of a parameter");
  }
}

struct NamedOp {
  const char* name;
  Op op;
  std::vector<Shape> parameters;
  DType dtype = DType::f32;  // of the parameters

  std::vector<Tensor> draw_parameters() const {
    std::vector<Tensor> drawn;
    for (const Shape& s : parameters) drawn.push_back(randn(s, {.dtype = dtype, .device = kCuda}));
    return drawn;
  }
};

void PrintTo(const NamedOp& op, std::ostream* out) { *out << op.name; }

class ImagesBeyond2To31Cuda : public testing::TestWithParam<NamedOp> {};

// "Slow" in the name: it needs 20 GB of the card.
TEST_P(ImagesBeyond2To31Cuda, SlowEndAsAlone) {
  GRADUS_SKIP_WITHOUT(kCuda);
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    SCOPED_TRACE(format == MemoryFormat::contiguous ? "contiguous" : "channels-last");
    const Tensor x = randn({32800, 64, 32, 32}, kHalf).contiguous(format);
    expect_end_as_alone(x, GetParam().op, GetParam().draw_parameters());
  }
}

using Parameters = std::vector<Tensor>;
const Shape kChannels{64};
const Shape kImage{64, 32, 32};

INSTANTIATE_TEST_SUITE_P(
    All, ImagesBeyond2To31Cuda,
    testing::Values(
        NamedOp{"batch_norm_eval",
                [](const Tensor& x, const Parameters& p) {
                  const Tensor mean = Tensor::zeros({64}, kFloat), var = Tensor::ones({64}, kFloat);
                  return batch_norm(x, p[0], p[1], {mean, var, {}}, {.training = false});
                },
                {kChannels, kChannels}},
        NamedOp{"group_norm",
                [](const Tensor& x, const Parameters& p) { return group_norm(x, 16, p[0], p[1]); },
                {kChannels, kChannels}},
        NamedOp{"instance_norm",
                [](const Tensor& x, const Parameters& p) { return instance_norm(x, p[0], p[1]); },
                {kChannels, kChannels}},
        NamedOp{
            "layer_norm",
            [](const Tensor& x, const Parameters& p) { return layer_norm(x, kImage, p[0], p[1]); },
            {kImage, kImage}},
        NamedOp{"rms_norm",
                [](const Tensor& x, const Parameters& p) { return rms_norm(x, kImage, p[0]); },
                {kImage}},
        NamedOp{"local_response_norm",
                [](const Tensor& x, const Parameters&) { return local_response_norm(x, 5); },
                {}},
        NamedOp{"softmax", [](const Tensor& x, const Parameters&) { return softmax(x, 1); }, {}},
        NamedOp{"relu", [](const Tensor& x, const Parameters&) { return relu(x); }, {}},
        NamedOp{"gelu", [](const Tensor& x, const Parameters&) { return gelu(x); }, {}},
        NamedOp{"max_pool2d",
                [](const Tensor& x, const Parameters&) {
                  return max_pool2d(x, {2, 2});
                },
                {}},
        NamedOp{"max_pool2d_strided",
                [](const Tensor& x, const Parameters&) {
                  return max_pool2d(x, {{3, 3}, {2, 2}, {1, 1}});
                },
                {}},
        NamedOp{"add_bias",
                [](const Tensor& x, const Parameters& p) {
                  return x + p[0].reshape({64, 1, 1});
                },
                {kChannels},
                DType::f16},
        NamedOp{"max_over_channels_and_columns",
                [](const Tensor& x, const Parameters&) {
                  return max(x, {1, 3}, true);
                },
                {}},
        NamedOp{
            "avg_pool2d",
            [](const Tensor& x, const Parameters&) { return avg_pool2d(x, {.kernel_size = 2}); },
            {}},
        NamedOp{"adaptive_avg_pool2d",
                [](const Tensor& x, const Parameters&) { return adaptive_avg_pool2d(x, 7); },
                {}},
        NamedOp{"conv2d",
                [](const Tensor& x, const Parameters& p) {
                  return conv2d(x, p[0], {}, {.padding = 1});
                },
                {{64, 64, 3, 3}},
                DType::f16},
        NamedOp{"conv2d_strided",
                [](const Tensor& x, const Parameters& p) {
                  return conv2d(x, p[0], {}, {.stride = 2, .padding = 1});
                },
                {{64, 64, 3, 3}},
                DType::f16},
        NamedOp{"conv2d_1x1",
                [](const Tensor& x, const Parameters& p) { return conv2d(x, p[0]); },
                {{64, 64, 1, 1}},
                DType::f16},
        NamedOp{"conv2d_groups",
                [](const Tensor& x, const Parameters& p) {
                  return conv2d(x, p[0], {}, {.padding = 1, .groups = 2});
                },
                {{64, 32, 3, 3}},
                DType::f16},
        NamedOp{"conv2d_depthwise",
                [](const Tensor& x, const Parameters& p) {
                  return conv2d(x, p[0], {}, {.padding = 1, .groups = 64});
                },
                {{64, 1, 3, 3}},
                DType::f16}),
    [](const auto& info) { return std::string(info.param.name); });

// A first layer: few elements of x, more than 2^31 of y.
TEST(FirstLayerBeyond2To31Cuda, SlowEndAsAlone) {
  GRADUS_SKIP_WITHOUT(kCuda);
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    SCOPED_TRACE(format == MemoryFormat::contiguous ? "contiguous" : "channels-last");
    constexpr int64_t count = 3;
    const Tensor x = randn({32800, 3, 32, 32}, kHalf).contiguous(format);
    const Tensor w = randn({64, 3, 3, 3}, kHalf);
    const Op op = [](const Tensor& t, const std::vector<Tensor>& p) {
      return conv2d(t, p[0], {}, {.padding = 1});
    };
    const Gradients whole = run_op(op, x, {w}, count),
                    alone = run_op(op, end_of(x, count), {w}, count);
    expect_close(whole.y, alone.y, "y");
    expect_close(whole.dx, alone.dx, "dx");
    expect_close(whole.parameters[0], alone.parameters[0], "gradient of a parameter");
  }
}

class RowsBeyond2To31Cuda : public testing::TestWithParam<NamedOp> {};

TEST_P(RowsBeyond2To31Cuda, SlowEndAsAlone) {
  GRADUS_SKIP_WITHOUT(kCuda);
  const Tensor x = randn({2097200, 1024}, kHalf);
  expect_end_as_alone(x, GetParam().op, GetParam().draw_parameters());
}

// Labels that depend on the row's place from the end.
Tensor labels_of(const Tensor& x) {
  Tensor labels = Tensor::zeros({x.shape()[0]}, {.dtype = DType::i64, .device = kCuda});
  end_of(labels, 3).copy_(Tensor::from_vector(std::vector<int64_t>{5, 1023, 0}, {3}));
  return labels;
}

INSTANTIATE_TEST_SUITE_P(
    All, RowsBeyond2To31Cuda,
    testing::Values(
        NamedOp{
            "layer_norm",
            [](const Tensor& x, const Parameters& p) { return layer_norm(x, {1024}, p[0], p[1]); },
            {{1024}, {1024}}},
        NamedOp{"rms_norm",
                [](const Tensor& x, const Parameters& p) { return rms_norm(x, {1024}, p[0]); },
                {{1024}}},
        NamedOp{"linear",
                [](const Tensor& x, const Parameters& p) { return linear(x, p[0]); },
                {{8, 1024}},
                DType::f16},
        NamedOp{"cross_entropy",
                [](const Tensor& x, const Parameters&) {
                  return cross_entropy(x, labels_of(x), {.reduction = Reduction::none});
                },
                {}},
        NamedOp{"nll_loss",
                [](const Tensor& x, const Parameters&) {
                  return nll_loss(x, labels_of(x), {.reduction = Reduction::none});
                },
                {}},
        NamedOp{"sum", [](const Tensor& x, const Parameters&) { return sum(x, {1}); }, {}},
        NamedOp{"mean", [](const Tensor& x, const Parameters&) { return mean(x, {1}); }, {}},
        NamedOp{"max", [](const Tensor& x, const Parameters&) { return max(x, {1}); }, {}},
        NamedOp{"norm2", [](const Tensor& x, const Parameters&) { return norm2(x, {1}); }, {}},
        NamedOp{
            "logsumexp", [](const Tensor& x, const Parameters&) { return logsumexp(x, {1}); }, {}},
        NamedOp{"var", [](const Tensor& x, const Parameters&) { return var(x, {1}); }, {}}),
    [](const auto& info) { return std::string(info.param.name); });

// All entries meet in each column here, so that all but the last are made to add nothing.
TEST(ColumnsBeyond2To31Cuda, SlowReductionsReachTheEnd) {
  GRADUS_SKIP_WITHOUT(kCuda);
  constexpr int64_t n = 2097200, c = 1024, count = 3;
  Tensor x = Tensor::zeros({n, c}, kHalf);
  end_of(x, count).copy_(randn({count, c}, kHalf));
  const std::vector<Op> ops{[](const Tensor& t, const Parameters&) { return sum(t, {0}); },
                            [](const Tensor& t, const Parameters&) { return norm2(t, {0}); }};
  for (const Op& op : ops) {
    const Tensor whole = x.detach().set_requires_grad(true);
    const Tensor alone = end_of(x, count).detach().set_requires_grad(true);
    const Tensor y = op(whole, {}), y_alone = op(alone, {}), dy = randn({c}, kHalf);
    y.backward(dy);
    y_alone.backward(dy);
    expect_close(y, y_alone, "y");
    expect_close(end_of(whole.grad(), count), alone.grad(), "dx");
  }
}

// On the CPU: an image of more than 2^31 pixels, of which the last rows are not zero. Needs 4.5 GB.
TEST(Conv2dBeyond2To31, SlowSampledOutputs) {
  constexpr int64_t side = 46400, stride = 8, rows = 24, first = side - rows;
  const TensorOptions half{.dtype = DType::f16};
  const Values x_end = draw_eighths(rows * side, 1), w = draw_eighths(9, 2);
  const Tensor x = Tensor::zeros({1, 1, side, side}, half);
  ASSERT_GT(x.numel(), int64_t{1} << 31);
  x.slice(2, first, side).copy_(Tensor::from_vector(x_end, {1, 1, rows, side}, half));
  const Tensor weight = Tensor::from_vector(w, {1, 1, 3, 3}, half);
  const Tensor y = conv2d(x, weight, {}, {.stride = stride, .padding = 1});
  const int64_t outputs = y.size(2), begin = outputs - 2;  // their last two rows
  const Values y_end = y.slice(2, begin, outputs).to_vector<double>();
  // All values are multiples of 1/8 of at most 1, so that these sums are exact.
  for (int64_t p = 0; p < 2; ++p) {
    for (int64_t q = 0; q < outputs; ++q) {
      double sum = 0;
      for (int64_t tap = 0; tap < 9; ++tap) {
        const int64_t u = (begin + p) * stride - 1 + tap / 3 - first, v = q * stride - 1 + tap % 3;
        if (v < 0 || v >= side) continue;
        sum += w[static_cast<size_t>(tap)] * x_end[static_cast<size_t>(u * side + v)];
      }
      ASSERT_EQ(y_end[static_cast<size_t>(p * outputs + q)], sum) << p << ' ' << q;
    }
  }
}

// More than 2^31 weights, of one tap and of two.
TEST(WeightsBeyond2To31Cuda, SlowEndAsAlone) {
  GRADUS_SKIP_WITHOUT(kCuda);
  constexpr int64_t inputs = 65536, count = 8;
  const Tensor x = randn({1, inputs, 4, 4}, kHalf).contiguous(MemoryFormat::channels_last);
  for (const int64_t taps : {1, 2}) {
    const int64_t outputs = 32768 / taps + count;
    const Tensor weight = randn({outputs, inputs, 1, taps}, kHalf);
    ASSERT_GT(weight.numel(), int64_t{1} << 31);
    const Tensor y = conv2d(x, weight), alone = conv2d(x, end_of(weight, count));
    expect_close(y.slice(1, outputs - count, outputs), alone, "y");
  }
}

// Each value is kept or dropped, about as often as not, up to the end.
TEST(DropoutBeyond2To31Cuda, SlowDropoutReachesTheEnd) {
  GRADUS_SKIP_WITHOUT(kCuda);
  const Tensor x = Tensor::ones({2097200, 1024}, kHalf).set_requires_grad(true);
  const Tensor y = dropout(x);
  y.backward(x.detach());
  const Values end = end_of(y, 3).to_vector<double>();
  int64_t kept = 0;
  for (const double v : end) {
    EXPECT_TRUE(v == 0 || v == 2) << v;
    kept += v == 2;
  }
  EXPECT_GT(kept, 1300);
  EXPECT_LT(kept, 1800);
  EXPECT_EQ(end_of(x.grad(), 3).to_vector<double>(), end);
}

}  // namespace
}  // namespace gradus
