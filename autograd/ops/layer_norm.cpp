#include "autograd/ops/layer_norm.h"

#include "autograd/ops/row_norm.h"
#include "autograd/tape.h"
#include "core/launch.h"
#include "core/ops/layer_norm.h"

namespace gradus {
namespace {

struct LayerNormNode final : Node {
  Saved x, gamma, mean, rstd;
  Shape normalized_shape;

  std::string_view name() const override { return "layer_norm"; }
  void backward(const Tensor& dy, Gradients& grads) override;
};

}  // namespace

Tensor layer_norm(const Tensor& input, const Shape& normalized_shape, const Tensor& gamma,
                  const Tensor& beta, double eps, NormStatistics* saved) {
  detail::check_norm_rows("layer_norm", input, normalized_shape);
  detail::check_norm_parameter("layer_norm", "gamma", gamma, input, normalized_shape);
  detail::check_norm_parameter("layer_norm", "beta", beta, input, normalized_shape);
  check(eps >= 0, "layer_norm", "eps must not be negative, got ", eps);
  const Tensor x = detail::dense_for_rows(input, normalized_shape);
  const detail::NormRows rows = detail::norm_rows(x, normalized_shape);
  const TensorOptions statistic{.dtype = acc_dtype(x.dtype()), .device = x.device()};
  Tensor y = empty_like(x);
  Tensor mean = Tensor::empty({rows.rows}, statistic);
  Tensor rstd = Tensor::empty({rows.rows}, statistic);
  if (rows.m == 0) mean.zero_(), rstd.zero_();  // the kernels write nothing
  const Tensor row_gamma = rows.flatten_parameter(gamma), row_beta = rows.flatten_parameter(beta);
  launch(LayerNormForward{.x = rows.view(x).raw(),
                          .gamma = row_gamma.raw(),
                          .beta = row_beta.raw(),
                          .y = rows.view(y).raw(),
                          .mean = mean.raw(),
                          .rstd = rstd.raw(),
                          .eps = eps});
  if (saved != nullptr) *saved = {.mean = mean, .rstd = rstd};
  if (auto node = make_node<LayerNormNode>(x, gamma, beta)) {
    node->x = Saved(x);
    node->gamma = Saved(gamma);
    node->mean = Saved(mean);
    node->rstd = Saved(rstd);
    node->normalized_shape = normalized_shape;
    attach(y, std::move(node));
  }
  return y;
}

void LayerNormNode::backward(const Tensor& upstream, Gradients& grads) {
  const Tensor x = this->x.get(name(), "x");
  const detail::NormRows rows = detail::norm_rows(x, normalized_shape);
  const Tensor gamma = rows.flatten_parameter(this->gamma.get(name(), "gamma"));
  const Tensor mean = this->mean.get(name(), "mean");
  const Tensor dy = dense(upstream, x.options().format);
  const Tensor dx = grads.allocate(0, x);
  const TensorOptions parameter{.dtype = mean.dtype(), .device = mean.device()};
  const Tensor dgamma = grads.wanted(1) ? Tensor::empty({rows.m}, parameter) : Tensor();
  const Tensor dbeta = grads.wanted(2) ? Tensor::empty({rows.m}, parameter) : Tensor();
  launch(LayerNormBackward{.x = rows.view(x).raw(),
                           .dy = rows.view(dy).raw(),
                           .gamma = gamma.raw(),
                           .mean = mean.raw(),
                           .rstd = rstd.get(name(), "rstd").raw(),
                           .dx = dx.defined() ? rows.view(dx).raw() : AnyView(),
                           .dgamma = dgamma.raw(),
                           .dbeta = dbeta.raw()});
  grads.set(0, dx);
  grads.set(1, rows.unflatten_gradient(dgamma));
  grads.set(2, rows.unflatten_gradient(dbeta));
}

}  // namespace gradus
