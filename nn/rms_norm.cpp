#include "nn/rms_norm.h"

#include <algorithm>

#include "autograd/ops/rms_norm.h"
#include "nn/init.h"

namespace gradus::nn {

RMSNorm::RMSNorm(const Shape& normalized_shape, std::optional<double> eps, bool elementwise_affine)
    : normalized_shape(normalized_shape), eps(eps) {
  check(normalized_shape.rank() > 0 && checked_numel(normalized_shape, "rms_norm") > 0, "rms_norm",
        "the normalized shape needs at least one axis and no empty one, got ", normalized_shape);
  if (elementwise_affine) weight = init::constant(normalized_shape, 1.0);
}

Tensor RMSNorm::forward(const Tensor& x) { return rms_norm(x, normalized_shape, weight, eps); }

void RMSNorm::list(Contents& own) { own.parameter("weight", weight, Stored::acc); }

SumLengths RMSNorm::sum_lengths(const Shape& x, const Shape&) {
  const int64_t m = std::max<int64_t>(1, normalized_shape.numel());
  return {.y = m, .dx = m, .parameters = x.numel() / m};
}

}  // namespace gradus::nn
