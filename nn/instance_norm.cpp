#include "nn/instance_norm.h"

#include <algorithm>

#include "autograd/ops/instance_norm.h"
#include "nn/init.h"

namespace gradus::nn {

InstanceNorm::InstanceNorm(int rank, int64_t num_features, double eps, double momentum, bool affine,
                           bool track_running_stats)
    : num_features(num_features), eps(eps), momentum(momentum), rank_(rank) {
  check(num_features > 0, "instance_norm", "num_features must be positive, got ", num_features);
  if (affine) {
    weight = init::constant({num_features}, 1.0);
    bias = init::constant({num_features}, 0.0);
  }
  if (track_running_stats) {
    running_mean = Tensor::zeros({num_features});
    running_var = Tensor::ones({num_features});
    num_batches_tracked = Tensor::zeros({}, {.dtype = DType::i64});
  }
}

Tensor InstanceNorm::forward(const Tensor& x) {
  check(x.rank() == rank_ || x.rank() == rank_ - 1, "instance_norm", kind(), " expects rank ",
        rank_ - 1, " or ", rank_, ", got ", x);
  const bool is_batch = x.rank() == rank_;
  check(x.size(is_batch ? 1 : 0) == num_features, "instance_norm", "expected ", num_features,
        " channels, got ", x);
  const Tensor y = instance_norm(is_batch ? x : x.unsqueeze(0), weight, bias,
                                 {.running_mean = running_mean, .running_var = running_var},
                                 {.training = training(), .momentum = momentum, .eps = eps});
  return is_batch ? y : y.squeeze(0);
}

void InstanceNorm::list(Contents& own) {
  own.parameter("weight", weight, Stored::acc);
  own.parameter("bias", bias, Stored::acc);
  own.buffer("running_mean", running_mean, Stored::acc);
  own.buffer("running_var", running_var, Stored::acc);
  own.buffer("num_batches_tracked", num_batches_tracked);
}

SumLengths InstanceNorm::sum_lengths(const Shape& x, const Shape&) {
  const int64_t c = std::max<int64_t>(1, num_features), m = x.numel() / c;
  const int64_t set = x.rank() < rank_ ? m : m / std::max<int64_t>(1, x[0]);
  return {.y = set, .dx = set, .parameters = m};
}

}  // namespace gradus::nn
