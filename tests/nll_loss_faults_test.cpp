// Known faults of losses of one label per row, by family and meaning, for nll_loss; those of
// cross_entropy are in cross_entropy_test.cpp.
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/ops/nll_loss.h"
#include "autograd/ops/sum.h"
#include "tests/support/expect_error.h"
#include "tests/support/gpu.h"

namespace gradus {
namespace {

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16};

Tensor log_probs(const std::vector<double>& values, const Shape& shape, DType dtype,
                 Device device) {
  return Tensor::from_vector(values, shape, {.dtype = dtype, .device = device})
      .set_requires_grad(true);
}

Tensor labels_of(const std::vector<int64_t>& values, Device device) {
  return Tensor::from_vector(values, {static_cast<int64_t>(values.size())},
                             {.dtype = DType::i64, .device = device});
}

// The same error on both devices, naming label and classes; on CUDA when the host next waits.
void labels_outside(Device device) {
  for (const int64_t bad : {int64_t{1000}, int64_t{3}, int64_t{-1}}) {
    const Tensor x = log_probs({-1, -2, -3, -4, -5, -6}, {2, 3}, DType::f32, device);
    const std::string text =
        concat("nll_loss: expected labels in [0, 3), got ", bad, " at index 1");
    Tensor y;
    EXPECT_ERROR(y = nll_loss(x, labels_of({0, bad}, device)); y.backward();
                 (void)y.item<float>(), ErrorCode::invalid_argument, text);
    if (y) {
      EXPECT_TRUE(std::isnan(y.item<float>()));
      const std::vector<double> dx = x.grad().to_vector<double>();
      for (size_t k = 3; k < 6; ++k) EXPECT_TRUE(std::isnan(dx[k]));
    }
    EXPECT_EQ(nll_loss(x, labels_of({0, 2}, device)).item<float>(), 3.5f);
  }
}
TEST(NllLossFaults, D068_LabelsOutside) { labels_outside(kCpu); }
TEST(NllLossCudaFaults, D068_LabelsOutside) {
  GRADUS_SKIP_WITHOUT(kCuda);
  labels_outside(kCuda);
}

// An ignored label is no index: of a weight that lies at the end of its buffer nothing is read.
void ignored_with_weights(Device device) {
  for (const DType dtype : kDTypes) {
    for (const int64_t ignored : {int64_t{-100}, int64_t{1} << 40}) {
      const Tensor x = log_probs({-1, -2, -0.5, -1.5}, {2, 2}, dtype, device);
      const Tensor weight = Tensor::from_vector<double>(
          {0.25, 0.75}, {2}, {.dtype = acc_dtype(dtype), .device = device});
      const Tensor y =
          nll_loss(x, labels_of({ignored, 0}, device), {.weight = weight, .ignore_index = ignored});
      EXPECT_EQ(y.item<double>(), 0.5);
      y.backward();
      EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{0, 0, -1, 0}));
    }
  }
}
TEST(NllLossFaults, D069_IgnoredLabelWithWeights) { ignored_with_weights(kCpu); }
TEST(NllLossCudaFaults, D069_IgnoredLabelWithWeights) {
  GRADUS_SKIP_WITHOUT(kCuda);
  ignored_with_weights(kCuda);
}

// reduction none followed by sum(): the upstream gradient is one element with stride 0.
void broadcast_upstream(Device device) {
  for (const DType dtype : kDTypes) {
    const Tensor x = log_probs({-1, -2, -3, -4, -5, -6, -7, -8, -9}, {3, 3}, dtype, device);
    sum(nll_loss(x, labels_of({0, 1, 2}, device), {.reduction = Reduction::none})).backward();
    EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{-1, 0, 0, 0, -1, 0, 0, 0, -1}));
  }
}
TEST(NllLossFaults, D070_BroadcastUpstream) { broadcast_upstream(kCpu); }
TEST(NllLossCudaFaults, D070_BroadcastUpstream) {
  GRADUS_SKIP_WITHOUT(kCuda);
  broadcast_upstream(kCuda);
}

void nothing_counted(Device device) {
  for (const Shape& shape : {Shape{0, 4}, Shape{3, 4}, Shape{0, 4, 2}, Shape{2, 4, 0}}) {
    Shape label_shape{shape[0]};
    if (shape.rank() == 3) label_shape.append(shape[2]);
    const Tensor labels =
        Tensor::zeros(label_shape, {.dtype = DType::i64, .device = device}).fill_(-100);
    for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
      const Tensor x = Tensor::ones(shape, {.device = device}).set_requires_grad(true);
      const Tensor y = nll_loss(x, labels, {.reduction = reduction});
      EXPECT_EQ(y.shape(), reduction == Reduction::none ? label_shape : Shape{});
      for (const double value : y.to_vector<double>()) {
        EXPECT_TRUE(reduction == Reduction::mean ? std::isnan(value) : value == 0);
      }
      y.backward(Tensor::ones(y.shape(), {.device = device}));
      for (const double d : x.grad().to_vector<double>()) EXPECT_EQ(d, 0);
    }
  }
}
TEST(NllLossFaults, D106_EmptyTensorsAndNothingCounted) { nothing_counted(kCpu); }
TEST(NllLossCudaFaults, D106_EmptyTensorsAndNothingCounted) {
  GRADUS_SKIP_WITHOUT(kCuda);
  nothing_counted(kCuda);
}

}  // namespace
}  // namespace gradus
