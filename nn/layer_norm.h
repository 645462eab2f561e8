// LayerNorm, as https://pytorch.org/docs/stable/generated/torch.nn.LayerNorm.html
#pragma once

#include "nn/module.h"

namespace gradus::nn {

// x [..., normalized_shape], any rank to 8; formula in core/ops/layer_norm.h. For an image
// [n, c, h, w] the normalized shape may be [c, h, w], [h, w] or [w].
class LayerNorm final : public Module {
 public:
  explicit LayerNorm(const Shape& normalized_shape, double eps = 1e-5,
                     bool elementwise_affine = true, bool bias = true);

  std::string_view kind() const override { return "LayerNorm"; }
  Tensor forward(const Tensor& x) override;
  void list(Contents& own) override;
  SumLengths sum_lengths(const Shape& x, const Shape& y) override;

  Shape normalized_shape;
  Tensor weight;  // [normalized_shape], acc; undefined without elementwise_affine
  Tensor bias;    // the same; undefined without bias too
  double eps;
};

}  // namespace gradus::nn
