// RMSNorm, as https://pytorch.org/docs/stable/generated/torch.nn.RMSNorm.html
#pragma once

#include <optional>

#include "nn/module.h"

namespace gradus::nn {

// x [..., normalized_shape], any rank to 8; formula in core/ops/rms_norm.h. For an image
// [n, c, h, w] the normalized shape may be [c, h, w], [h, w] or [w].
class RMSNorm final : public Module {
 public:
  // eps: empty for the machine epsilon of x's dtype.
  explicit RMSNorm(const Shape& normalized_shape, std::optional<double> eps = {},
                   bool elementwise_affine = true);

  std::string_view kind() const override { return "RMSNorm"; }
  Tensor forward(const Tensor& x) override;
  void list(Contents& own) override;
  SumLengths sum_lengths(const Shape& x, const Shape& y) override;

  Shape normalized_shape;
  Tensor weight;  // [normalized_shape], acc; undefined without elementwise_affine
  std::optional<double> eps;
};

}  // namespace gradus::nn
