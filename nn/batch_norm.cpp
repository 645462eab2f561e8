#include "nn/batch_norm.h"

#include <algorithm>

#include "autograd/ops/batch_norm.h"
#include "nn/init.h"

namespace gradus::nn {

BatchNorm::BatchNorm(int min_rank, int max_rank, int64_t num_features, double eps,
                     std::optional<double> momentum, bool affine, bool track_running_stats)
    : num_features(num_features),
      eps(eps),
      momentum(momentum),
      min_rank_(min_rank),
      max_rank_(max_rank) {
  check(num_features > 0, "batch_norm", "num_features must be positive, got ", num_features);
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

Tensor BatchNorm::forward(const Tensor& x) {
  check(x.rank() >= min_rank_ && x.rank() <= max_rank_, "batch_norm", kind(), " expects rank ",
        min_rank_, min_rank_ == max_rank_ ? "" : " or 3", ", got ", x);
  check(x.size(1) == num_features, "batch_norm", "expected ", num_features, " channels, got ", x);
  return batch_norm(
      x, weight, bias,
      {.running_mean = running_mean, .running_var = running_var, .batches = num_batches_tracked},
      {.training = training(),
       .momentum = momentum.value_or(0.0),
       .cumulative = !momentum.has_value() && num_batches_tracked.defined(),
       .eps = eps});
}

void BatchNorm::list(Contents& own) {
  own.parameter("weight", weight, Stored::acc);
  own.parameter("bias", bias, Stored::acc);
  own.buffer("running_mean", running_mean, Stored::acc);
  own.buffer("running_var", running_var, Stored::acc);
  own.buffer("num_batches_tracked", num_batches_tracked);
}

SumLengths BatchNorm::sum_lengths(const Shape& x, const Shape&) {
  const int64_t m = x.numel() / std::max<int64_t>(1, x[1]);
  return {.y = m, .dx = m, .parameters = m};
}

}  // namespace gradus::nn
