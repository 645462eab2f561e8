#include "nn/group_norm.h"

#include <algorithm>

#include "autograd/ops/group_norm.h"
#include "nn/init.h"

namespace gradus::nn {

GroupNorm::GroupNorm(int64_t num_groups, int64_t num_channels, double eps, bool affine)
    : num_groups(num_groups), num_channels(num_channels), eps(eps) {
  check(num_groups > 0, "group_norm", "num_groups must be positive, got ", num_groups);
  check(num_channels > 0 && num_channels % num_groups == 0, "group_norm",
        "num_channels = ", num_channels,
        " must be a positive multiple of num_groups = ", num_groups);
  if (affine) {
    weight = init::constant({num_channels}, 1.0);
    bias = init::constant({num_channels}, 0.0);
  }
}

Tensor GroupNorm::forward(const Tensor& x) {
  check(x.rank() >= 2 && x.size(1) == num_channels, "group_norm", "expected [n, ", num_channels,
        ", ...], got ", x);
  return group_norm(x, num_groups, weight, bias, eps);
}

void GroupNorm::list(Contents& own) {
  own.parameter("weight", weight, Stored::acc);
  own.parameter("bias", bias, Stored::acc);
}

SumLengths GroupNorm::sum_lengths(const Shape& x, const Shape&) {
  const int64_t m = x.numel() / std::max<int64_t>(1, x[0] * num_groups);
  return {.y = m, .dx = m, .parameters = x.numel() / num_channels};
}

}  // namespace gradus::nn
