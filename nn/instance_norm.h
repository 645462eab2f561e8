// InstanceNorm1d, 2d and 3d, as
// https://pytorch.org/docs/stable/generated/torch.nn.InstanceNorm2d.html
#pragma once

#include "nn/module.h"

namespace gradus::nn {

// What the three share; formulas in core/ops/group_norm.h (each channel a group) and
// core/ops/instance_norm.h. Training normalizes with the statistics of each sample and channel;
// evaluation with the running ones, where they are tracked. An x without the sample axis is one
// sample.
class InstanceNorm : public Module {
 public:
  Tensor forward(const Tensor& x) override;
  void list(Contents& own) override;
  SumLengths sum_lengths(const Shape& x, const Shape& y) override;

  Tensor weight, bias;               // [c], acc; undefined without affine
  Tensor running_mean, running_var;  // [c], acc; undefined without track_running_stats
  Tensor num_batches_tracked;        // [], i64; the same; stays 0, as PyTorch's does
  int64_t num_features;
  double eps;
  double momentum;

 protected:
  InstanceNorm(int rank, int64_t num_features, double eps, double momentum, bool affine,
               bool track_running_stats);

 private:
  int rank_;  // of a batch
};

// x [n, c, l] or [c, l].
class InstanceNorm1d final : public InstanceNorm {
 public:
  explicit InstanceNorm1d(int64_t num_features, double eps = 1e-5, double momentum = 0.1,
                          bool affine = false, bool track_running_stats = false)
      : InstanceNorm(3, num_features, eps, momentum, affine, track_running_stats) {}
  std::string_view kind() const override { return "InstanceNorm1d"; }
};

// x [n, c, h, w] or [c, h, w].
class InstanceNorm2d final : public InstanceNorm {
 public:
  explicit InstanceNorm2d(int64_t num_features, double eps = 1e-5, double momentum = 0.1,
                          bool affine = false, bool track_running_stats = false)
      : InstanceNorm(4, num_features, eps, momentum, affine, track_running_stats) {}
  std::string_view kind() const override { return "InstanceNorm2d"; }
};

// x [n, c, d, h, w] or [c, d, h, w].
class InstanceNorm3d final : public InstanceNorm {
 public:
  explicit InstanceNorm3d(int64_t num_features, double eps = 1e-5, double momentum = 0.1,
                          bool affine = false, bool track_running_stats = false)
      : InstanceNorm(5, num_features, eps, momentum, affine, track_running_stats) {}
  std::string_view kind() const override { return "InstanceNorm3d"; }
};

}  // namespace gradus::nn
