// GroupNorm, as https://pytorch.org/docs/stable/generated/torch.nn.GroupNorm.html
#pragma once

#include "nn/module.h"

namespace gradus::nn {

// x [n, c, ...] of rank 2 to 5; each of num_groups groups of neighbouring channels of a sample is
// normalized by itself. Formula in core/ops/group_norm.h.
class GroupNorm final : public Module {
 public:
  GroupNorm(int64_t num_groups, int64_t num_channels, double eps = 1e-5, bool affine = true);
  std::string_view kind() const override { return "GroupNorm"; }
  Tensor forward(const Tensor& x) override;
  void list(Contents& own) override;
  SumLengths sum_lengths(const Shape& x, const Shape& y) override;

  Tensor weight, bias;  // [c], acc; undefined without affine
  int64_t num_groups;
  int64_t num_channels;
  double eps;
};

}  // namespace gradus::nn
