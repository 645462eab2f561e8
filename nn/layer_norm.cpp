#include "nn/layer_norm.h"

#include <algorithm>

#include "autograd/ops/layer_norm.h"
#include "nn/init.h"

namespace gradus::nn {

LayerNorm::LayerNorm(const Shape& normalized_shape, double eps, bool elementwise_affine, bool bias)
    : normalized_shape(normalized_shape), eps(eps) {
  check(normalized_shape.rank() > 0 && checked_numel(normalized_shape, "layer_norm") > 0,
        "layer_norm", "the normalized shape needs at least one axis and no empty one, got ",
        normalized_shape);
  if (!elementwise_affine) return;
  weight = init::constant(normalized_shape, 1.0);
  if (bias) this->bias = init::constant(normalized_shape, 0.0);
}

Tensor LayerNorm::forward(const Tensor& x) {
  return layer_norm(x, normalized_shape, weight, bias, eps);
}

void LayerNorm::list(Contents& own) {
  own.parameter("weight", weight, Stored::acc);
  own.parameter("bias", bias, Stored::acc);
}

SumLengths LayerNorm::sum_lengths(const Shape& x, const Shape&) {
  const int64_t m = std::max<int64_t>(1, normalized_shape.numel());
  return {.y = m, .dx = m, .parameters = x.numel() / m};
}

}  // namespace gradus::nn
