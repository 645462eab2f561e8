#include "core/ops/track_metrics.h"

#include <algorithm>
#include <limits>

#include "core/launch.h"
#include "core/tensor.h"
#include "tests/support/gpu.h"

namespace gradus {
namespace {

using Values = std::vector<double>;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Tracked {
  Values totals;
  int64_t failed_step;
};

// The same batch twice.
Tracked track(const Tensor& logits, const Tensor& labels, double loss, DType loss_dtype,
              Device device) {
  const Tensor totals = Tensor::zeros({3}, {.dtype = DType::f64, .device = device});
  const Tensor failed = Tensor::full({1}, -1, {.dtype = DType::i64, .device = device});
  const Tensor step = Tensor::full({1}, 41, {.dtype = DType::i64, .device = device});
  const Tensor value = Tensor::full({1}, loss, {.dtype = loss_dtype, .device = device});
  const Tensor x = logits.to(device), own_labels = labels.to(device);
  for (int i = 0; i < 2; ++i) {
    launch(TrackMetrics{.loss = value.raw(),
                        .logits = x.raw(),
                        .labels = own_labels.raw(),
                        .totals = totals.raw(),
                        .step = step.raw(),
                        .failed_step = failed.raw()});
  }
  return {totals.to_vector<double>(), failed.to_vector<int64_t>()[0]};
}

TEST(TrackMetrics, FirstOfEqualsIsTheAnswer) {
  const Tensor logits = Tensor::from_vector(Values{1, 3, 3,     // 1
                                                   3, 3, 1,     // 0
                                                   kNaN, 1, 0,  // none
                                                   0, 0, 2},    // 2
                                            {4, 3}, {.dtype = DType::f32});
  const auto right = [&](const std::vector<int64_t>& labels) {
    const Tensor tensor = Tensor::from_vector(labels, {4}, {.dtype = DType::i64});
    return track(logits, tensor, 0.5, DType::f32, kCpu).totals[1] / 2;
  };
  EXPECT_EQ(right({1, 0, 0, 2}), 3);
  EXPECT_EQ(right({2, 1, 1, 0}), 0);
  EXPECT_EQ(right({-1, 3, 2, -100}), 0);
}

TEST(TrackMetrics, NotFiniteLossNotesItsStep) {
  const Tensor logits = Tensor::zeros({2, 3}), labels = Tensor::zeros({2}, {.dtype = DType::i64});
  EXPECT_EQ(track(logits, labels, 1, DType::f32, kCpu).failed_step, -1);
  EXPECT_EQ(track(logits, labels, kNaN, DType::f32, kCpu).failed_step, 41);
}

// Small numbers, so that many are equal, some NaN, and labels that are right as often as not.
TEST(TrackMetricsCuda, AsOnTheCpu) {
  GRADUS_SKIP_WITHOUT(kCuda);
  const Shape shapes[] = {{1, 1},      {5, 3},       {128, 10}, {300, 16},   {513, 10},
                          {64, 17},    {7, 33},      {9, 1000}, {256, 1000}, {2, 5000},
                          {3000, 100}, {200000, 10}, {0, 1000}};
  for (const Shape& shape : shapes) {
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      SCOPED_TRACE(testing::Message() << shape[0] << " x " << shape[1] << ", " << to_string(dtype));
      const int64_t n = shape[0], c = shape[1];
      Values values(static_cast<size_t>(n * c));
      std::vector<int64_t> labels(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; ++i) {
        double* row = values.data() + i * c;
        for (int64_t k = 0; k < c; ++k) row[k] = static_cast<double>((i * 31 + k * 17) % 11);
        if (i % 7 == 3) row[i % c] = kNaN;
        // The first of the largest, the one after it, or no class.
        const int64_t best = std::max_element(row, row + c) - row;
        labels[static_cast<size_t>(i)] = i % 5 == 4 ? c : i % 2 == 0 ? best : (best + 1) % c;
      }
      const Tensor x = Tensor::from_vector(values, shape, {.dtype = dtype});
      const Tensor l = Tensor::from_vector(labels, {n}, {.dtype = DType::i64});
      const Tracked want = track(x, l, 0.75, acc_dtype(dtype), kCpu);
      const Tracked got = track(x, l, 0.75, acc_dtype(dtype), kCuda);
      EXPECT_EQ(got.totals, want.totals);
      EXPECT_EQ(got.failed_step, want.failed_step);
      if (n > 4) {
        EXPECT_GT(want.totals[1], 0);
      }
      EXPECT_EQ(track(x, l, kNaN, dtype, kCuda).failed_step, 41);
    }
  }
}

}  // namespace
}  // namespace gradus
