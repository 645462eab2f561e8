#include "autograd/ops/instance_norm.h"

#include <algorithm>

#include "autograd/ops/batch_norm.h"
#include "autograd/ops/group_norm_node.h"
#include "autograd/ops/per_channel.h"
#include "core/launch.h"
#include "core/ops/instance_norm.h"

namespace gradus {

Tensor instance_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta,
                     const InstanceNormState& state, const InstanceNormOptions& options,
                     NormStatistics* saved) {
  check(x.rank() >= 2 && x.rank() <= 5, "instance_norm",
        "expected [n, c, ...] of rank 2 to 5, got ", x);
  check(is_floating(x.dtype()), "instance_norm", "expected a floating dtype, got ", x);
  check_running_statistics("instance_norm", state.running_mean, state.running_var, x);
  const bool tracked = state.running_mean.defined();
  if (tracked && !options.training) {
    // Said here, where the op has the caller's name.
    check_per_channel("instance_norm", "gamma", gamma, x);
    check_per_channel("instance_norm", "beta", beta, x);
    check(options.eps >= 0, "instance_norm", "eps must not be negative, got ", options.eps);
    return batch_norm(x, gamma, beta, {state.running_mean, state.running_var, {}},
                      {.training = false, .eps = options.eps}, saved);
  }
  const bool updates = tracked && x.numel() > 0;
  const int64_t s = x.numel() / std::max<int64_t>(x.size(0) * x.size(1), 1);
  check(!updates || s > 1, "instance_norm",
        "running statistics need more than one value per sample and channel, got ", x);
  NormStatistics statistics;
  Tensor var;
  const Tensor y = detail::normalize_groups({.op = "instance_norm",
                                             .groups = std::max<int64_t>(x.size(1), 1),
                                             .eps = options.eps,
                                             .saved = &statistics,
                                             .var = updates ? &var : nullptr},
                                            x, gamma, beta);
  if (updates) {
    launch(InstanceNormUpdate{.mean = statistics.mean.raw(),
                              .var = var.raw(),
                              .running_mean = state.running_mean.raw(),
                              .running_var = state.running_var.raw(),
                              .s = s,
                              .momentum = options.momentum});
    state.running_mean.storage()->bump_version();
    state.running_var.storage()->bump_version();
  }
  if (saved != nullptr) *saved = statistics;
  return y;
}

}  // namespace gradus
