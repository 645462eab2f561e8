#include "autograd/ops/group_norm.h"

#include "autograd/ops/group_norm_node.h"
#include "autograd/ops/per_channel.h"
#include "autograd/tape.h"
#include "core/launch.h"

namespace gradus {
namespace {

struct GroupNormNode final : Node {
  Saved x, gamma, mean, rstd;
  int64_t groups;
  std::string_view op;

  std::string_view name() const override { return op; }
  void backward(const Tensor& dy, Gradients& grads) override;
};

}  // namespace

namespace detail {

Tensor normalize_groups(const GroupNormCall& call, const Tensor& input, const Tensor& gamma_in,
                        const Tensor& beta_in) {
  const std::string_view op = call.op;
  check(input.rank() >= 2 && input.rank() <= 5, op, "expected [n, c, ...] of rank 2 to 5, got ",
        input);
  check(is_floating(input.dtype()), op, "expected a floating dtype, got ", input);
  check(call.groups > 0, op, "groups must be positive, got ", call.groups);
  check(input.size(1) % call.groups == 0, op, "the ", input.size(1), " channels of ", input,
        " do not fall into ", call.groups, " groups");
  check_per_channel(op, "gamma", gamma_in, input);
  check_per_channel(op, "beta", beta_in, input);
  check(call.eps >= 0, op, "eps must not be negative, got ", call.eps);
  const Tensor x = dense_either(input);
  const Tensor gamma = dense_parameter(gamma_in), beta = dense_parameter(beta_in);
  const TensorOptions statistic{.dtype = acc_dtype(x.dtype()), .device = x.device()};
  const Shape per_set = {x.size(0), call.groups};
  Tensor y = empty_like(x);
  Tensor mean = Tensor::empty(per_set, statistic);
  Tensor rstd = Tensor::empty(per_set, statistic);
  if (call.var != nullptr) *call.var = Tensor::empty(per_set, statistic);
  launch(GroupNormForward{.x = x.raw(),
                          .gamma = gamma.raw(),
                          .beta = beta.raw(),
                          .y = y.raw(),
                          .mean = mean.raw(),
                          .rstd = rstd.raw(),
                          .var = call.var != nullptr ? call.var->raw() : AnyView(),
                          .groups = call.groups,
                          .eps = call.eps});
  if (call.saved != nullptr) *call.saved = {mean, rstd};
  if (auto node = make_node<GroupNormNode>(x, gamma_in, beta_in)) {
    node->x = Saved(x);
    node->gamma = Saved(gamma);
    node->mean = Saved(mean);
    node->rstd = Saved(rstd);
    node->groups = call.groups;
    node->op = op;
    attach(y, std::move(node));
  }
  return y;
}

}  // namespace detail

Tensor group_norm(const Tensor& x, int64_t groups, const Tensor& gamma, const Tensor& beta,
                  double eps, NormStatistics* saved) {
  return detail::normalize_groups(
      {.op = "group_norm", .groups = groups, .eps = eps, .saved = saved}, x, gamma, beta);
}

void GroupNormNode::backward(const Tensor& upstream, Gradients& grads) {
  const Tensor x = this->x.get(name(), "x");
  const Tensor gamma = this->gamma.get(name(), "gamma");
  const Tensor mean = this->mean.get(name(), "mean");
  const Tensor dy = dense(upstream, x.options().format);
  const Tensor dx = grads.allocate(0, x);
  const auto per_channel = [&](size_t input) {
    return grads.wanted(input) ? Tensor::empty({x.size(1)}, mean.options()) : Tensor();
  };
  const Tensor dgamma = per_channel(1), dbeta = per_channel(2);
  launch(GroupNormBackward{.x = x.raw(),
                           .dy = dy.raw(),
                           .gamma = gamma.raw(),
                           .mean = mean.raw(),
                           .rstd = rstd.get(name(), "rstd").raw(),
                           .dx = dx.raw(),
                           .dgamma = dgamma.raw(),
                           .dbeta = dbeta.raw(),
                           .groups = groups});
  grads.set(0, dx);
  grads.set(1, dgamma);
  grads.set(2, dbeta);
}

}  // namespace gradus
