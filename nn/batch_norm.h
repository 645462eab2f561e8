// BatchNorm1d, 2d and 3d, as https://pytorch.org/docs/stable/generated/torch.nn.BatchNorm2d.html
#pragma once

#include <optional>

#include "nn/module.h"

namespace gradus::nn {

// What the three share; formula in core/ops/batch_norm.h. Evaluation normalizes with the running
// statistics, or with those of the batch where none are tracked.
class BatchNorm : public Module {
 public:
  Tensor forward(const Tensor& x) override;
  void list(Contents& own) override;
  SumLengths sum_lengths(const Shape& x, const Shape& y) override;

  Tensor weight, bias;               // [c], acc; undefined without affine
  Tensor running_mean, running_var;  // [c], acc; undefined without track_running_stats
  Tensor num_batches_tracked;        // [], i64; the same
  int64_t num_features;
  double eps;
  std::optional<double> momentum;  // empty: the average over all batches

 protected:
  BatchNorm(int min_rank, int max_rank, int64_t num_features, double eps,
            std::optional<double> momentum, bool affine, bool track_running_stats);

 private:
  int min_rank_, max_rank_;
};

// x [n, c] or [n, c, l].
class BatchNorm1d final : public BatchNorm {
 public:
  explicit BatchNorm1d(int64_t num_features, double eps = 1e-5,
                       std::optional<double> momentum = 0.1, bool affine = true,
                       bool track_running_stats = true)
      : BatchNorm(2, 3, num_features, eps, momentum, affine, track_running_stats) {}
  std::string_view kind() const override { return "BatchNorm1d"; }
};

// x [n, c, h, w].
class BatchNorm2d final : public BatchNorm {
 public:
  explicit BatchNorm2d(int64_t num_features, double eps = 1e-5,
                       std::optional<double> momentum = 0.1, bool affine = true,
                       bool track_running_stats = true)
      : BatchNorm(4, 4, num_features, eps, momentum, affine, track_running_stats) {}
  std::string_view kind() const override { return "BatchNorm2d"; }
};

// x [n, c, d, h, w].
class BatchNorm3d final : public BatchNorm {
 public:
  explicit BatchNorm3d(int64_t num_features, double eps = 1e-5,
                       std::optional<double> momentum = 0.1, bool affine = true,
                       bool track_running_stats = true)
      : BatchNorm(5, 5, num_features, eps, momentum, affine, track_running_stats) {}
  std::string_view kind() const override { return "BatchNorm3d"; }
};

}  // namespace gradus::nn
