// Kernels may start while the one before them ends: what they read must be what that one has
// written. Each layer stands between two convolutions whose kernels let the next one start before
// they store, and gives the same bits as with waits in between, forward and backward.
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
#include "core/backend.h"
#include "core/generator.h"
#include "tests/support/gpu.h"

namespace gradus {
namespace {

constexpr int64_t kChannels = 64, kSide = 56;

struct Layer {
  const char* name;
  Tensor (*forward)(const Tensor&);
};
void PrintTo(const Layer& layer, std::ostream* out) { *out << layer.name; }

const Layer kLayers[] = {
    {"BatchNorm", [](const Tensor& x) { return batch_norm(x); }},
    {"BatchNormEval",
     [](const Tensor& x) {
       const TensorOptions options{.dtype = acc_dtype(x.dtype()), .device = kCuda};
       return batch_norm(
           x, {}, {}, {Tensor::zeros({kChannels}, options), Tensor::ones({kChannels}, options), {}},
           {.training = false});
     }},
    {"GroupNorm", [](const Tensor& x) { return group_norm(x, 8); }},
    {"InstanceNorm", [](const Tensor& x) { return instance_norm(x); }},
    {"LayerNorm",
     [](const Tensor& x) {
       return layer_norm(x, {kChannels, kSide, kSide});
     }},
    {"LayerNormOfRows", [](const Tensor& x) { return layer_norm(x, {kSide}); }},
    {"RmsNormOfRows", [](const Tensor& x) { return rms_norm(x, {kSide}); }},
    {"LocalResponseNorm", [](const Tensor& x) { return local_response_norm(x, 5); }},
    {"SoftmaxOfChannels", [](const Tensor& x) { return softmax(x, 1); }},
    {"SoftmaxOfRows", [](const Tensor& x) { return softmax(x, 3); }},
    {"Relu", [](const Tensor& x) { return relu(x); }},
    {"Mean", [](const Tensor& x) { return mean(x, {1}, true).expand(x.shape()); }},
    {"Max",
     [](const Tensor& x) {
       return max(x, {2, 3}, true).expand(x.shape());
     }},
    {"Logsumexp", [](const Tensor& x) { return logsumexp(x, {1}, true).expand(x.shape()); }},
    {"Var",
     [](const Tensor& x) {
       return var(x, {0, 2, 3}, 1, true).expand(x.shape());
     }},
};

class OverlappingLaunchesCuda : public test::GpuTest, public testing::WithParamInterface<Layer> {};
INSTANTIATE_TEST_SUITE_P(Layers, OverlappingLaunchesCuda, testing::ValuesIn(kLayers),
                         [](const auto& info) { return info.param.name; });

Tensor depthwise(const Tensor& x, const Tensor& w) {
  return conv2d(x, w, {}, {.padding = 1, .groups = kChannels});
}

// A leaf of x's values, when they are there.
Tensor leaf_of(const Tensor& x) {
  synchronize(cuda());
  return x.detach().set_requires_grad(true);
}

struct Results {
  Tensor y, dx;
};

// The tape as it runs: nothing waits.
Results run_freely(const Layer& layer, const Tensor& values, const Tensor& w, const Tensor& dy) {
  const Tensor x = values.detach().set_requires_grad(true);
  const Tensor y = depthwise(layer.forward(depthwise(x, w)), w);
  y.backward(dy);
  return {y.detach(), x.grad()};
}

// The same op by op, with a wait before each that the layer's kernels are part of.
Results run_with_waits(const Layer& layer, const Tensor& values, const Tensor& w,
                       const Tensor& dy) {
  const Tensor x = leaf_of(values);
  const Tensor first = depthwise(x, w);
  const Tensor of_layer = leaf_of(first);
  const Tensor z = layer.forward(of_layer);
  const Tensor of_last = leaf_of(z);
  const Tensor y = depthwise(of_last, w);
  y.backward(dy);
  synchronize(cuda());
  z.backward(of_last.grad());
  synchronize(cuda());
  first.backward(of_layer.grad());
  return {y.detach(), x.grad()};
}

TEST_P(OverlappingLaunchesCuda, ReadWhatTheLaunchBeforeHasWritten) {
  const Layer& layer = GetParam();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto format : {MemoryFormat::channels_last, MemoryFormat::contiguous}) {
      SCOPED_TRACE(concat(dtype, " ", format));
      const TensorOptions options{.dtype = dtype, .device = kCuda, .format = format};
      const Shape shape{16, kChannels, kSide, kSide};
      const Tensor w = randn({kChannels, 1, 3, 3}, {.dtype = dtype, .device = kCuda});
      const Tensor dy = randn(shape, options);
      std::vector<Tensor> values;
      for (int round = 0; round < 3; ++round) values.push_back(randn(shape, options));
      std::vector<Results> free;
      for (const Tensor& x : values) free.push_back(run_freely(layer, x, w, dy));
      for (size_t round = 0; round < values.size(); ++round) {
        const Results wanted = run_with_waits(layer, values[round], w, dy);
        EXPECT_EQ(free[round].y.to_vector<double>(), wanted.y.to_vector<double>()) << round;
        EXPECT_EQ(free[round].dx.to_vector<double>(), wanted.dx.to_vector<double>()) << round;
      }
    }
  }
}

}  // namespace
}  // namespace gradus
