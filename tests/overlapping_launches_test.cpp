// Kernels may start before the one before them has ended: what they read must be what that one has
// written. Each layer's first launch, forward and backward, comes right behind a copy that lets it
// start and stores its operand long after, over NaN.
#include <cmath>

#include "autograd/ops/activation.h"
#include "autograd/ops/batch_norm.h"
#include "autograd/ops/conv2d.h"
#include "autograd/ops/group_norm.h"
#include "autograd/ops/instance_norm.h"
#include "autograd/ops/layer_norm.h"
#include "autograd/ops/local_response_norm.h"
#include "autograd/ops/reduce.h"
#include "autograd/ops/rms_norm.h"
#include "autograd/ops/softmax.h"
#include "autograd/ops/sum.h"
#include "core/generator.h"
#include "tests/late_copy.h"
#include "tests/support/gpu.h"

namespace gradus {
namespace {

constexpr int64_t kChannels = 64, kSide = 28;

// What a layer has beside x, made before the copy.
struct Parameters {
  BatchNormState running;
  Tensor w;  // of depthwise filters
};

struct Layer {
  const char* name;
  Tensor (*forward)(const Tensor& x, const Parameters&);
};
void PrintTo(const Layer& layer, std::ostream* out) { *out << layer.name; }

const Layer kLayers[] = {
    {"BatchNorm", [](const Tensor& x, const Parameters&) { return batch_norm(x); }},
    {"BatchNormEval",
     [](const Tensor& x, const Parameters& with) {
       return batch_norm(x, {}, {}, with.running, {.training = false});
     }},
    {"GroupNorm", [](const Tensor& x, const Parameters&) { return group_norm(x, 8); }},
    {"InstanceNorm", [](const Tensor& x, const Parameters&) { return instance_norm(x); }},
    {"LayerNorm",
     [](const Tensor& x, const Parameters&) {
       return layer_norm(x, {kChannels, kSide, kSide});
     }},
    {"LayerNormOfRows", [](const Tensor& x, const Parameters&) { return layer_norm(x, {kSide}); }},
    {"RmsNormOfRows", [](const Tensor& x, const Parameters&) { return rms_norm(x, {kSide}); }},
    {"LocalResponseNorm",
     [](const Tensor& x, const Parameters&) { return local_response_norm(x, 5); }},
    {"SoftmaxOfChannels", [](const Tensor& x, const Parameters&) { return softmax(x, 1); }},
    {"SoftmaxOfRows", [](const Tensor& x, const Parameters&) { return softmax(x, 3); }},
    {"Relu", [](const Tensor& x, const Parameters&) { return relu(x); }},
    {"Mean", [](const Tensor& x, const Parameters&) { return mean(x, {1}); }},
    {"Max",
     [](const Tensor& x, const Parameters&) {
       return max(x, {2, 3});
     }},
    {"Logsumexp", [](const Tensor& x, const Parameters&) { return logsumexp(x, {1}); }},
    {"Var",
     [](const Tensor& x, const Parameters&) {
       return var(x, {0, 2, 3});
     }},
    {"DepthwiseConv2d",
     [](const Tensor& x, const Parameters& with) {
       return conv2d(x, with.w, {}, {.padding = 1, .groups = kChannels});
     }},
};

class OverlappingLaunchesCuda : public test::GpuTest, public testing::WithParamInterface<Layer> {};
INSTANTIATE_TEST_SUITE_P(Layers, OverlappingLaunchesCuda, testing::ValuesIn(kLayers),
                         [](const auto& info) { return info.param.name; });

// A tensor of NaN that the device is writing `values` to.
Tensor written_late(const Tensor& values) {
  Tensor place = empty_like(values);
  place.fill_(NAN);
  synchronize(cuda());
  test::late_copy(cuda(), place.raw().data, values.raw().data, values.nbytes());
  return place;
}

std::vector<double> gradient(const Tensor& y, const Tensor& x, const Tensor& dy) {
  y.backward(dy);
  return x.grad().to_vector<double>();
}

TEST_P(OverlappingLaunchesCuda, ReadWhatTheLaunchBeforeHasWritten) {
  const Layer& layer = GetParam();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const TensorOptions statistic{.dtype = acc_dtype(dtype), .device = kCuda};
    const Parameters with{.running = {Tensor::zeros({kChannels}, statistic),
                                      Tensor::ones({kChannels}, statistic),
                                      {}},
                          .w = randn({kChannels, 1, 3, 3}, {.dtype = dtype, .device = kCuda})};
    for (const auto format : {MemoryFormat::channels_last, MemoryFormat::contiguous}) {
      SCOPED_TRACE(concat(dtype, " ", format));
      const Tensor values =
          randn({8, kChannels, kSide, kSide}, {.dtype = dtype, .device = kCuda, .format = format});
      const Tensor x = values.clone().set_requires_grad(true);
      const Tensor late = values.clone().set_requires_grad(true);
      const Tensor y = layer.forward(x, with);
      EXPECT_EQ(layer.forward(written_late(values), with).to_vector<double>(),
                y.to_vector<double>());
      const Tensor y_late = layer.forward(late, with);
      const Tensor dy = randn(y.shape(), y.options());
      const std::vector<double> wanted = gradient(y, x, dy);
      EXPECT_EQ(gradient(y_late, late, written_late(dy)), wanted);
    }
  }
}

// What the tests above rest on.
class LateCopyCuda : public test::GpuTest {};

TEST_F(LateCopyCuda, IsSeenTooEarlyWithoutAWait) {
  if (!cuda().has_hopper_features()) GTEST_SKIP() << "launches do not overlap";
  const Tensor values = Tensor::ones({1 << 16}, {.device = kCuda});
  const auto sum_of_copy = [&](bool waits) {
    const Tensor copy = Tensor::zeros({1 << 16}, {.device = kCuda});
    const Tensor place = written_late(values);
    test::overlapping_copy(cuda(), copy.raw().data, place.raw().data, copy.nbytes(), waits);
    return sum(copy).item<float>();
  };
  EXPECT_EQ(sum_of_copy(true), 1 << 16);
  EXPECT_TRUE(std::isnan(sum_of_copy(false)));
}

}  // namespace
}  // namespace gradus
