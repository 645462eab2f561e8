// Kernels may start before the one before them has ended: what they read must be what that one has
// written. Each layer's first launch, forward and backward, comes right behind a copy that lets it
// start and stores its operand long after, over NaN. The launches behind the first one read scratch
// memory that was NaN, too: one that does not wait may be seen there, if it is fast enough.
#include <cmath>
#include <functional>

#include "autograd/ops/activation.h"
#include "autograd/ops/batch_norm.h"
#include "autograd/ops/group_norm.h"
#include "autograd/ops/instance_norm.h"
#include "autograd/ops/layer_norm.h"
#include "autograd/ops/local_response_norm.h"
#include "autograd/ops/reduce.h"
#include "autograd/ops/rms_norm.h"
#include "autograd/ops/softmax.h"
#include "autograd/ops/sum.h"
#include "core/generator.h"
#include "cuda/conv2d_ways.h"
#include "tests/late_copy.h"
#include "tests/support/conv_problem.h"
#include "tests/support/conv_results.h"

namespace gradus {
namespace {

using Compute = std::function<Tensor(const Tensor&)>;

struct Run {
  std::vector<double> result;
  bool in_time = false;  // all was launched before the copy stored anything
};

// compute() of a tensor of NaN that a copy stores `values` to, late or at once.
Run behind_copy(const Tensor& values, const Compute& compute, bool late) {
  Tensor place = empty_like(values);
  place.fill_(NAN);
  test::spoil_scratch(cuda());
  synchronize(cuda());
  const test::LateCopy copy(cuda(), place.raw().data, values.raw().data, values.nbytes(), late);
  if (!late) synchronize(cuda());
  const Tensor result = compute(place);
  const bool in_time = !copy.has_stored();
  return {result.to_vector<double>(), in_time};
}

// Expects the same bits of values that are late. Each run's `prepare` makes what it computes by;
// the first one, which is not late, leaves all the memory that the others need in the allocator's
// cache, and the kernels loaded. Where the host was held up all the same, it tries again.
void expect_waits(std::string_view operand, const Tensor& values,
                  const std::function<Compute()>& prepare) {
  SCOPED_TRACE(operand);
  const std::vector<double> wanted = behind_copy(values, prepare(), false).result;
  for (int tries = 0; tries < 10; ++tries) {
    const Run run = behind_copy(values, prepare(), true);
    ASSERT_EQ(run.result, wanted);
    if (run.in_time) return;
  }
  FAIL() << "the copy had stored before all was launched";
}

Compute gradient_of(const Tensor& leaf, const Tensor& y) {
  return [=](const Tensor& dy) {
    y.backward(dy);
    return leaf.grad();
  };
}

constexpr int64_t kLongestRow = 4096;

// What a layer reads beside x, made before.
struct Given {
  explicit Given(DType dtype, int64_t channels = 1) {
    const TensorOptions options{.dtype = acc_dtype(dtype), .device = kCuda};
    running = {Tensor::zeros({channels}, options), Tensor::ones({channels}, options), {}};
    ones = Tensor::ones({kLongestRow}, options), zeros = Tensor::zeros({kLongestRow}, options);
  }
  Tensor gamma(int64_t m) const { return ones.slice(0, 0, m); }
  Tensor beta(int64_t m) const { return zeros.slice(0, 0, m); }
  BatchNormState running;
  Tensor ones, zeros;  // [kLongestRow]
};

template <int64_t m>
Tensor layer_norm_of(const Tensor& x, const Given& given) {
  return layer_norm(x.reshape({-1, m}), {m}, given.gamma(m), given.beta(m));
}
template <int64_t m>
Tensor rms_norm_of(const Tensor& x, const Given& given) {
  return rms_norm(x.reshape({-1, m}), {m}, given.gamma(m));
}

struct Layer {
  const char* name;
  Tensor (*forward)(const Tensor& x, const Given& given);
};
void PrintTo(const Layer& layer, std::ostream* out) { *out << layer.name; }

constexpr int64_t kChannels = 64, kSide = 28;

const Layer kLayers[] = {
    {"BatchNorm", [](const Tensor& x, const Given&) { return batch_norm(x); }},
    {"BatchNormEval",
     [](const Tensor& x, const Given& given) {
       return batch_norm(x, {}, {}, given.running, {.training = false});
     }},
    {"GroupNorm", [](const Tensor& x, const Given&) { return group_norm(x, 8); }},
    {"InstanceNorm", [](const Tensor& x, const Given&) { return instance_norm(x); }},
    {"LayerNorm",
     [](const Tensor& x, const Given&) {
       return layer_norm(x, {kChannels, kSide, kSide});
     }},
    {"LayerNormOfRows", [](const Tensor& x, const Given&) { return layer_norm(x, {kSide}); }},
    {"RmsNormOfRows", [](const Tensor& x, const Given&) { return rms_norm(x, {kSide}); }},
    {"LayerNormOf1024", layer_norm_of<1024>},
    {"LayerNormOf4096", layer_norm_of<4096>},
    {"RmsNormOf1024", rms_norm_of<1024>},
    {"RmsNormOf4096", rms_norm_of<4096>},
    {"LocalResponseNorm", [](const Tensor& x, const Given&) { return local_response_norm(x, 5); }},
    {"SoftmaxOfChannels", [](const Tensor& x, const Given&) { return softmax(x, 1); }},
    {"SoftmaxOfRows", [](const Tensor& x, const Given&) { return softmax(x, 3); }},
    {"Relu", [](const Tensor& x, const Given&) { return relu(x); }},
    {"Mean", [](const Tensor& x, const Given&) { return mean(x, {1}); }},
    {"Max",
     [](const Tensor& x, const Given&) {
       return max(x, {2, 3});
     }},
    {"Logsumexp", [](const Tensor& x, const Given&) { return logsumexp(x, {1}); }},
    {"Var",
     [](const Tensor& x, const Given&) {
       return var(x, {0, 2, 3});
     }},
};

class OverlappingLaunchesCuda : public test::GpuTest, public testing::WithParamInterface<Layer> {};
INSTANTIATE_TEST_SUITE_P(Layers, OverlappingLaunchesCuda, testing::ValuesIn(kLayers),
                         [](const auto& info) { return info.param.name; });

// y of x, and dx of dy.
void expect_both_wait(const Layer& layer, const Given& given, const Tensor& values) {
  const auto forward = [&](const Tensor& x) { return layer.forward(x, given); };
  expect_waits("x", values, [&] { return forward; });
  const Tensor like_y = forward(values);
  expect_waits("dy", randn(like_y.shape(), like_y.options()), [&] {
    const Tensor x = values.clone().set_requires_grad(true);
    return gradient_of(x, forward(x));
  });
}

TEST_P(OverlappingLaunchesCuda, ReadWhatTheLaunchBeforeHasWritten) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Given given(dtype, kChannels);
    for (const auto format : {MemoryFormat::channels_last, MemoryFormat::contiguous}) {
      SCOPED_TRACE(concat(dtype, " ", format));
      const Tensor values =
          randn({8, kChannels, kSide, kSide}, {.dtype = dtype, .device = kCuda, .format = format});
      expect_both_wait(GetParam(), given, values);
    }
  }
}

// What does not fit L2 has kernels of its own.
const Layer kLargeLayers[] = {
    {"Relu", [](const Tensor& x,
                const Given&) { return relu(x.detach().set_requires_grad(true)).detach(); }},
    {"LayerNorm", layer_norm_of<kLongestRow>},
    {"RmsNorm", rms_norm_of<kLongestRow>},
};

class OverlappingLargeCuda : public test::GpuTest, public testing::WithParamInterface<Layer> {};
INSTANTIATE_TEST_SUITE_P(Layers, OverlappingLargeCuda, testing::ValuesIn(kLargeLayers),
                         [](const auto& info) { return info.param.name; });

TEST_P(OverlappingLargeCuda, ReadWhatTheLaunchBeforeHasWritten) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Given given(dtype);
    const int64_t rows = cuda().info().l2_bytes / (kLongestRow * size_of(dtype)) / 4 * 4 + 4;
    expect_waits(to_string(dtype), randn({rows, kLongestRow}, {.dtype = dtype, .device = kCuda}),
                 [&] { return [&](const Tensor& x) { return GetParam().forward(x, given); }; });
  }
}

class OverlappingLargeImagesCuda : public test::GpuTest {};

TEST_F(OverlappingLargeImagesCuda, ReadWhatTheLaunchBeforeHasWritten) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const int64_t image = kChannels * kSide * kSide * size_of(dtype);
    const Shape shape{cuda().info().l2_bytes / image + 3, kChannels, kSide, kSide};
    const Tensor values = randn(shape, {.dtype = dtype, .device = kCuda});
    for (const Layer& layer : std::span(kLayers).first(2)) {  // batch norm
      SCOPED_TRACE(concat(layer.name, " ", dtype));
      expect_both_wait(layer, Given(dtype, kChannels), values);
    }
  }
}

struct Conv {
  const char* name;
  ConvShapes shapes;
  ConvMode mode;
  ConvPath paths[3];  // of y, dx and dw, on Hopper
};
void PrintTo(const Conv& conv, std::ostream* out) { *out << conv.name; }

ConvShapes windows(int64_t c, int64_t k, int64_t stride = 1) {
  return {{8, c, kSide, kSide}, {k, c, 3, 3}, {.stride = stride, .padding = 1}};
}
ConvShapes filters(int64_t side, int64_t stride = 1) {
  return {{8, kChannels, side, side},
          {kChannels, 1, 3, 3},
          {.stride = stride, .padding = 1, .groups = kChannels}};
}

constexpr ConvMode kStrict = kConvModes[0], kTf32 = kConvModes[1], kBf16 = kConvModes[3];
using enum ConvPath;

// Every kernel of conv2d that may overlap the launch before and is the first one of its way: all of
// depthwise; of first y and dw, but not y in strict f32; of shift, wgmma and halo dw.
// The first launch of the others is a plain one, which waits by itself; they are here in case that
// changes. Behind it a missing wait can be hidden: y and dx of shift, wgmma and gemm come behind
// the packing of the weights (in strict f32 wgmma's behind the splitting of x, too), the sums of
// slices behind the first stage of dw. NCHW tensors are copied by plain launches before all but
// direct, and so are not here.
const Conv kConvs[] = {
    {"First1", windows(1, 32), kBf16, {first, first, first}},
    {"First1Tf32", windows(1, 32), kTf32, {first, first, first}},
    {"First1Strict", windows(1, 32), kStrict, {first, first, first}},
    {"First3", windows(3, 64), kBf16, {first, first, first}},
    {"First3Tf32", windows(3, 64), kTf32, {first, first, first}},
    {"First3Strict", windows(3, 64), kStrict, {first, first, first}},
    {"Direct", windows(2, 8), kBf16, {direct, gemm, direct}},
    {"Gemm", windows(8, 8), kBf16, {gemm, gemm, gemm}},
    {"GemmStrict", windows(8, 8), kStrict, {gemm, gemm, gemm}},
    {"Shift32", windows(32, 32), kBf16, {shift, shift, halo}},
    {"Shift32Tf32", windows(32, 32), kTf32, {shift, shift, halo}},
    {"HaloStrict", windows(32, 32), kStrict, {halo, halo, halo}},
    {"HaloStrided", windows(32, 32, 2), kBf16, {halo, halo, halo}},
    {"HaloStridedTf32", windows(32, 32, 2), kTf32, {halo, halo, halo}},
    {"HaloStridedStrict", windows(32, 32, 2), kStrict, {halo, halo, halo}},
    {"ShiftRows", windows(64, 64), kBf16, {shift, shift, shift}},
    {"ShiftAllTaps", windows(64, 64), kTf32, {shift, shift, shift}},
    {"ShiftPairs", windows(128, 128), kBf16, {wgmma, wgmma, shift}},
    {"ShiftTf32", windows(128, 128), kTf32, {wgmma, wgmma, shift}},
    {"Wgmma", windows(128, 128, 2), kBf16, {wgmma, wgmma, wgmma}},
    {"WgmmaTf32", windows(128, 128, 2), kTf32, {wgmma, wgmma, wgmma}},
    {"WgmmaStrict64", windows(64, 64), kStrict, {wgmma, wgmma, wgmma}},
    {"WgmmaStrict128", windows(128, 128), kStrict, {wgmma, wgmma, wgmma}},
    {"Depthwise", filters(kSide), kBf16, {depthwise, depthwise, depthwise}},
    {"DepthwiseStrict", filters(kSide), kStrict, {depthwise, depthwise, depthwise}},
    {"DepthwiseNarrow", filters(10), kBf16, {depthwise, depthwise, depthwise}},
    {"DepthwiseNarrowStrict", filters(10), kStrict, {depthwise, depthwise, depthwise}},
    {"DepthwiseStrided", filters(kSide, 2), kBf16, {depthwise, direct, depthwise}},
    {"DepthwiseStridedStrict", filters(kSide, 2), kStrict, {depthwise, direct, depthwise}},
};

TEST(OverlappingConvs, TakeTheWaysNamed) {
  for (const Conv& conv : kConvs) {
    SCOPED_TRACE(conv.name);
    const auto& [x, w, options] = conv.shapes;
    const Window window{{w[2], w[3]}, options.stride, options.padding, options.dilation};
    const ConvMath math = conv_math(conv.mode.dtype, conv.mode.precision == MatmulPrecision::tf32);
    for (const Kind kind : kKinds) {
      const ConvProblem problem =
          problem_of(kind, conv.mode.dtype, x[0], w[1], w[0] / options.groups, {x[2], x[3]}, window,
                     options.groups, math);
      EXPECT_EQ(to_string(plan_conv(on_hopper(problem)).path),
                to_string(conv.paths[static_cast<size_t>(kind)]));
    }
  }
}

class OverlappingConvsCuda : public test::GpuTest, public testing::WithParamInterface<Conv> {};
INSTANTIATE_TEST_SUITE_P(Ways, OverlappingConvsCuda, testing::ValuesIn(kConvs),
                         [](const auto& info) { return info.param.name; });

TEST_P(OverlappingConvsCuda, ReadWhatTheLaunchBeforeHasWritten) {
  const auto& [x_shape, w_shape, options] = GetParam().shapes;
  const MatmulPrecisionGuard precision(GetParam().mode.precision);
  const TensorOptions flat{.dtype = GetParam().mode.dtype, .device = kCuda};
  TensorOptions channels_last = flat;
  channels_last.format = MemoryFormat::channels_last;
  const Tensor x = randn(x_shape, channels_last), w = randn(w_shape, flat);
  const auto forward = [&given = options](const Tensor& image, const Tensor& weights) {
    return conv2d(image, weights, {}, given);
  };
  expect_waits("x", x, [&] { return [&](const Tensor& late) { return forward(late, w); }; });
  expect_waits("w", w, [&] { return [&](const Tensor& late) { return forward(x, late); }; });
  const Tensor like_y = forward(x, w), dy = randn(like_y.shape(), like_y.options());
  expect_waits("dy, for dx", dy, [&] {
    const Tensor leaf = x.clone().set_requires_grad(true);
    return gradient_of(leaf, forward(leaf, w));
  });
  expect_waits("dy, for dw", dy, [&] {
    const Tensor leaf = w.clone().set_requires_grad(true);
    return gradient_of(leaf, forward(x, leaf));
  });
}

// What the tests above rest on.
class LateCopyCuda : public test::GpuTest {};

TEST_F(LateCopyCuda, IsSeenTooEarlyWithoutAWait) {
  if (!cuda().has_hopper_features()) GTEST_SKIP() << "launches do not overlap";
  const Tensor values = Tensor::ones({1 << 16}, {.device = kCuda});
  const auto sum_of_copy = [&](bool waits) {
    const Tensor to = Tensor::zeros(values.shape(), values.options());
    const auto copy = [&](const Tensor& place) {
      test::overlapping_copy(cuda(), to.raw().data, place.raw().data, to.nbytes(), waits);
      return sum(to);
    };
    return behind_copy(values, copy, true).result.at(0);
  };
  EXPECT_EQ(sum_of_copy(true), 1 << 16);
  EXPECT_TRUE(std::isnan(sum_of_copy(false)));
}

TEST_F(LateCopyCuda, SaysThatItHasStored) {
  const Tensor values = Tensor::ones({1 << 16}, {.device = kCuda}), to = empty_like(values);
  const test::LateCopy copy(cuda(), to.raw().data, values.raw().data, to.nbytes());
  synchronize(cuda());
  EXPECT_TRUE(copy.has_stored());
  EXPECT_EQ(sum(to).item<float>(), 1 << 16);
}

}  // namespace
}  // namespace gradus
