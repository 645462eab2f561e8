// Known faults of cross-entropy in comparable software: each a test of its whole family, on both
// devices.
#include <cmath>

#include "autograd/ops/cross_entropy.h"
#include "autograd/ops/sum.h"
#include "tests/support/compare_gtest.h"
#include "tests/support/expect_error.h"
#include "tests/support/gpu.h"
#include "tests/support/guard_allocator.h"
#include "tests/support/op_modes.h"

namespace gradus {
namespace {

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16};

using Values = std::vector<double>;

Tensor logits_of(const Values& values, const Shape& shape, DType dtype, Device device) {
  return Tensor::from_vector(values, shape, {.dtype = dtype, .device = device})
      .set_requires_grad(true);
}

Tensor labels_of(const std::vector<int64_t>& values, Device device, DType dtype = DType::i64) {
  return Tensor::from_vector(values, {static_cast<int64_t>(values.size())},
                             {.dtype = dtype, .device = device});
}

#define GRADUS_ON_BOTH_DEVICES(name)             \
  void name(Device device);                      \
  TEST(CrossEntropyFaults, name) { name(kCpu); } \
  TEST(CrossEntropyCudaFaults, name) {           \
    GRADUS_SKIP_WITHOUT(kCuda);                  \
    name(kCuda);                                 \
  }                                              \
  void name(Device device)

// The same error on both devices; on CUDA when the host next waits, and the loss is NaN till then.
GRADUS_ON_BOTH_DEVICES(D068_LabelsOutside) {
  for (const DType dtype : kDTypes) {
    for (const int64_t bad : {int64_t{1000}, int64_t{3}, int64_t{-1}, int64_t{1} << 40}) {
      const Tensor x = logits_of({2.5, 0, 0, 0, 0, 2.5}, {2, 3}, dtype, device);
      const std::string text =
          concat("cross_entropy: expected labels in [0, 3), got ", bad, " at index 1");
      Tensor y;
      EXPECT_ERROR(y = cross_entropy(x, labels_of({0, bad}, device)); y.backward();
                   (void)y.item<double>(), ErrorCode::invalid_argument, text);
      EXPECT_ERROR(check_labels(labels_of({0, bad}, device), 3), ErrorCode::invalid_argument, text);
      if (y) {
        EXPECT_TRUE(std::isnan(y.item<double>()));
        const Values dx = x.grad().to_vector<double>();
        for (size_t k = 3; k < 6; ++k) EXPECT_TRUE(std::isnan(dx[k]));
      }
      // Still usable.
      EXPECT_NEAR(cross_entropy(x, labels_of({0, 2}, device)).item<double>(), 0.15200842, 1e-6);
    }
  }
}

// In labels of every dtype, every reduction, rows apart and side by side.
GRADUS_ON_BOTH_DEVICES(D068_LabelsOutsideOfEveryKind) {
  for (const DType label_dtype : {DType::u8, DType::i32, DType::i64}) {
    for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
      for (const Shape& shape : {Shape{4, 3}, Shape{1, 3, 2, 2}}) {
        const Tensor x = Tensor::zeros(shape, {.device = device});
        Tensor labels = labels_of({0, 2, 77, 1}, device, label_dtype);
        if (shape.rank() == 4) labels = labels.reshape({1, 2, 2});
        EXPECT_ERROR((void)cross_entropy(x, labels, {.reduction = reduction}).to_vector<double>(),
                     ErrorCode::invalid_argument, "got 77 at index 2");
      }
    }
  }
}

// Of several wrong labels the first is named, however many rows lie between.
GRADUS_ON_BOTH_DEVICES(D068_FirstWrongLabelIsNamed) {
  for (const int64_t classes : {int64_t{3}, int64_t{100}}) {
    std::vector<int64_t> labels(5000, 1);
    labels[700] = 500;
    labels[701] = labels[4999] = -7;
    const Tensor x = Tensor::zeros({5000, classes}, {.device = device});
    EXPECT_ERROR((void)cross_entropy(x, labels_of(labels, device)).item<float>(),
                 ErrorCode::invalid_argument, "got 500 at index 700");
  }
}

GRADUS_ON_BOTH_DEVICES(D068_LabelsCheckedBeforehand) {
  check_labels(labels_of({0, 2, -100}, device), 3);
  check_labels(labels_of({0, 2, 9}, device), 3, 9);
  EXPECT_ERROR(check_labels(labels_of({0, -100}, device), 3, 9), ErrorCode::invalid_argument,
               "got -100 at index 1");
}

// A forward pass that throws leaves no history: the logits have no gradient afterwards.
TEST(CrossEntropyFaults, D068_LeavesNoHistory) {
  const Tensor x = logits_of({1, 2, 3, 4}, {2, 2}, DType::f32, kCpu);
  EXPECT_ERROR((void)cross_entropy(x, labels_of({0, 5}, kCpu)), ErrorCode::invalid_argument,
               "got 5 at index 1");
  EXPECT_FALSE(x.grad().defined());
}

// An ignored label is no index: of weights that lie between guard bands nothing outside is read.
GRADUS_ON_BOTH_DEVICES(D069_WeightsSmoothingAndIgnoredTogether) {
  GuardAllocatorScope guard(device);
  for (const DType dtype : kDTypes) {
    for (const int64_t ignored : {int64_t{-100}, int64_t{1} << 40, int64_t{2}}) {
      for (const auto& [smoothing, want] : {std::pair(0.1, 0.4396208), std::pair(0.0, 0.1269280)}) {
        const Tensor x = logits_of({1, 2, 0.5, -1.5}, {2, 2}, dtype, device);
        const Tensor weight = Tensor::from_vector(Values{0.25, 0.75}, {2},
                                                  {.dtype = acc_dtype(dtype), .device = device});
        const Tensor y = cross_entropy(
            x, labels_of({ignored, 0}, device),
            {.weight = weight, .label_smoothing = smoothing, .ignore_index = ignored});
        EXPECT_NEAR(y.item<double>(), want, dtype == DType::f64 ? 5e-8 : 1e-6);
        y.backward();
        const Values dx = x.grad().to_vector<double>();
        EXPECT_EQ(dx[0], 0);
        EXPECT_EQ(dx[1], 0);
        EXPECT_NE(dx[2], 0);
        EXPECT_NEAR(dx[2] + dx[3], 0, ulp(dx[2], dtype) + ulp(1, acc_dtype(dtype)));
      }
    }
  }
  EXPECT_EQ(guard.damage(), "");
}

// 1 and many terms of 0.1: what each of these loses shows.
GRADUS_ON_BOTH_DEVICES(D004_LongSumsKeepTheirDigits) {
  const int64_t c = 1 << 18;
  Values x(static_cast<size_t>(c), std::log(0.1));
  x[0] = 0;
  const double want = std::log(1 + 0.1 * static_cast<double>(c - 1));
  const Tensor row = logits_of(x, {1, c, 1}, DType::f32, device).detach();
  for (const int64_t rows : {1, 2}) {  // neighbours, or columns
    const Tensor logits = row.expand({1, c, rows}).contiguous();
    const Tensor labels = labels_of(std::vector<int64_t>(static_cast<size_t>(rows)), device);
    EXPECT_NEAR(cross_entropy(logits, labels.reshape({1, rows})).item<double>(), want, 3e-5);
  }
}

// A class that is masked or far below the others gets nothing or what is left, not more.
GRADUS_ON_BOTH_DEVICES(MaskedClassesHaveNoGradient) {
  for (const DType dtype : kDTypes) {
    const Tensor x =
        logits_of({0, -std::numeric_limits<double>::infinity(), -1000, -92}, {1, 4}, dtype, device);
    cross_entropy(x, labels_of({0}, device)).backward();
    const Values dx = x.grad().to_vector<double>();
    EXPECT_EQ(dx[1], 0) << to_string(dtype);
    EXPECT_EQ(dx[2], 0) << to_string(dtype);
    EXPECT_LT(dx[3], 2e-40) << to_string(dtype);
  }
}

// Reduction none, then sum: the upstream gradient is one element with stride 0.
GRADUS_ON_BOTH_DEVICES(D070_BroadcastUpstream) {
  const Values want = {-0.334759, 0.244728, 0.0900306, 0.106507, -0.213014,
                       0.106507,  0.333333, 0.333333,  -0.666667};
  for (const DType dtype : kDTypes) {
    const Tensor x = logits_of({1, 0, -1, 0, 2, 0, 1, 1, 1}, {3, 3}, dtype, device);
    sum(cross_entropy(x, labels_of({0, 1, 2}, device), {.reduction = Reduction::none})).backward();
    const Tolerance allowed{.relative = dtype == DType::f64 ? 0 : ulp(1, dtype), .absolute = 5e-7};
    EXPECT_TRUE(agrees(x.grad().to_vector<double>(), want, dtype, allowed)) << to_string(dtype);
  }
}

// An upstream that is a column of a larger tensor.
GRADUS_ON_BOTH_DEVICES(D070_StridedUpstream) {
  const Tensor x = logits_of({1, 0, 2, 0.5, 0, 3}, {3, 2}, DType::f64, device);
  const Tensor table = Tensor::from_vector(Values{1, 90, -2, 91, 3, 92}, {3, 2},
                                           {.dtype = DType::f64, .device = device});
  cross_entropy(x, labels_of({0, 1, 1}, device), {.reduction = Reduction::none})
      .backward(table.slice(1, 0, 1).squeeze(1));
  const auto share = [](double own, double other) { return 1 / (1 + std::exp(own - other)); };
  const Values want = {-share(1, 0),      share(1, 0),     -2 * share(0.5, 2),
                       2 * share(0.5, 2), 3 * share(3, 0), -3 * share(3, 0)};
  EXPECT_TRUE(agrees(x.grad().to_vector<double>(), want, DType::f64, 3));
}

}  // namespace
}  // namespace gradus
