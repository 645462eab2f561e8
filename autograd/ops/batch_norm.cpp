#include "autograd/ops/batch_norm.h"

#include <algorithm>

#include "autograd/ops/per_channel.h"
#include "autograd/tape.h"
#include "core/launch.h"
#include "core/ops/batch_norm.h"

namespace gradus {
namespace {

struct BatchNormNode final : Node {
  Saved x, gamma, mean, rstd;
  bool training;

  std::string_view name() const override { return "batch_norm"; }
  void backward(const Tensor& dy, Gradients& grads) override;
};

void check_arguments(const Tensor& x, const Tensor& gamma, const Tensor& beta,
                     const BatchNormState& state, const BatchNormOptions& options) {
  check(x.rank() >= 2 && x.rank() <= 5, "batch_norm", "expected [n, c, ...] of rank 2 to 5, got ",
        x);
  check(is_floating(x.dtype()), "batch_norm", "expected a floating dtype, got ", x);
  check_per_channel("batch_norm", "gamma", gamma, x);
  check_per_channel("batch_norm", "beta", beta, x);
  check_running_statistics("batch_norm", state.running_mean, state.running_var, x);
  check(!state.batches.defined() ||
            (state.batches.numel() == 1 && state.batches.dtype() == DType::i64),
        "batch_norm", "batches must be one i64");
  check(!options.cumulative || state.batches.defined(), "batch_norm",
        "a cumulative average needs `batches`");
  check(options.eps >= 0, "batch_norm", "eps must not be negative, got ", options.eps);
  const int64_t m = x.numel() / std::max<int64_t>(x.size(1), 1);
  const bool uses_batch = options.training || !state.running_mean.defined();
  check(!uses_batch || m != 1, "batch_norm", "training needs more than one value per channel, got ",
        x);
}

}  // namespace

Tensor batch_norm(const Tensor& input, const Tensor& gamma_in, const Tensor& beta_in,
                  const BatchNormState& state, const BatchNormOptions& options,
                  NormStatistics* saved) {
  check_arguments(input, gamma_in, beta_in, state, options);
  const Tensor x = dense_either(input);
  const Tensor gamma = dense_parameter(gamma_in), beta = dense_parameter(beta_in);
  const bool training = options.training || !state.running_mean.defined();
  const bool updates = options.training && state.running_mean.defined() && x.numel() > 0;
  const TensorOptions statistic{.dtype = acc_dtype(x.dtype()), .device = x.device()};
  Tensor y = empty_like(x);
  Tensor mean = Tensor::empty({x.size(1)}, statistic);
  Tensor rstd = Tensor::empty({x.size(1)}, statistic);
  const bool reads_state = updates || !training;
  launch(BatchNormForward{.x = x.raw(),
                          .gamma = gamma.raw(),
                          .beta = beta.raw(),
                          .y = y.raw(),
                          .mean = mean.raw(),
                          .rstd = rstd.raw(),
                          .running_mean = reads_state ? state.running_mean.raw() : AnyView(),
                          .running_var = reads_state ? state.running_var.raw() : AnyView(),
                          .batches = updates ? state.batches.raw() : AnyView(),
                          .momentum = options.momentum,
                          .cumulative = options.cumulative,
                          .eps = options.eps,
                          .training = training});
  if (x.numel() == 0) mean.zero_(), rstd.zero_();
  if (updates) {
    state.running_mean.storage()->bump_version();
    state.running_var.storage()->bump_version();
    if (state.batches.defined()) state.batches.storage()->bump_version();
  }
  if (saved != nullptr) *saved = {.mean = mean, .rstd = rstd};
  if (auto node = make_node<BatchNormNode>(x, gamma_in, beta_in)) {
    node->x = Saved(x);
    node->gamma = Saved(gamma);
    node->mean = Saved(mean);
    node->rstd = Saved(rstd);
    node->training = training;
    attach(y, std::move(node));
  }
  return y;
}

void BatchNormNode::backward(const Tensor& upstream, Gradients& grads) {
  const Tensor x = this->x.get(name(), "x");
  const Tensor gamma = this->gamma.get(name(), "gamma");
  const Tensor mean = this->mean.get(name(), "mean");
  const Tensor dy = dense(upstream, x.options().format);
  const Tensor dx = grads.allocate(0, x);
  const Tensor dgamma = grads.allocate(1, mean);
  const Tensor dbeta = grads.allocate(2, mean);
  launch(BatchNormBackward{.x = x.raw(),
                           .dy = dy.raw(),
                           .gamma = gamma.raw(),
                           .mean = mean.raw(),
                           .rstd = rstd.get(name(), "rstd").raw(),
                           .dx = dx.raw(),
                           .dgamma = dgamma.raw(),
                           .dbeta = dbeta.raw(),
                           .training = training});
  grads.set(0, dx);
  grads.set(1, dgamma);
  grads.set(2, dbeta);
}

}  // namespace gradus
