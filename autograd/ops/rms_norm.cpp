#include "autograd/ops/rms_norm.h"

#include "autograd/ops/row_norm.h"
#include "autograd/tape.h"
#include "core/launch.h"
#include "core/ops/rms_norm.h"

namespace gradus {
namespace {

struct RmsNormNode final : Node {
  Saved x, gamma, rstd;
  Shape normalized_shape;

  std::string_view name() const override { return "rms_norm"; }
  void backward(const Tensor& dy, Gradients& grads) override;
};

double machine_epsilon(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 0x1p-52;
    case DType::f16:
      return 0x1p-10;
    case DType::bf16:
      return 0x1p-7;
    default:
      return 0x1p-23;
  }
}

}  // namespace

Tensor rms_norm(const Tensor& input, const Shape& normalized_shape, const Tensor& gamma,
                std::optional<double> eps, NormStatistics* saved) {
  detail::check_norm_rows("rms_norm", input, normalized_shape);
  detail::check_norm_parameter("rms_norm", "gamma", gamma, input, normalized_shape);
  check(!eps || *eps >= 0, "rms_norm", "eps must not be negative, got ", eps.value_or(0));
  const Tensor x = detail::dense_for_rows(input, normalized_shape);
  const detail::NormRows rows = detail::norm_rows(x, normalized_shape);
  Tensor y = empty_like(x);
  Tensor rstd = Tensor::empty({rows.rows}, {.dtype = acc_dtype(x.dtype()), .device = x.device()});
  if (rows.m == 0) rstd.zero_();  // the kernels write nothing
  const Tensor row_gamma = rows.flatten_parameter(gamma);
  launch(RmsNormForward{.x = rows.view(x).raw(),
                        .gamma = row_gamma.raw(),
                        .y = rows.view(y).raw(),
                        .rstd = rstd.raw(),
                        .eps = eps.value_or(machine_epsilon(x.dtype()))});
  if (saved != nullptr) *saved = {.mean = {}, .rstd = rstd};
  if (auto node = make_node<RmsNormNode>(x, gamma)) {
    node->x = Saved(x);
    node->gamma = Saved(gamma);
    node->rstd = Saved(rstd);
    node->normalized_shape = normalized_shape;
    attach(y, std::move(node));
  }
  return y;
}

void RmsNormNode::backward(const Tensor& upstream, Gradients& grads) {
  const Tensor x = this->x.get(name(), "x");
  const detail::NormRows rows = detail::norm_rows(x, normalized_shape);
  const Tensor gamma = rows.flatten_parameter(this->gamma.get(name(), "gamma"));
  const Tensor rstd = this->rstd.get(name(), "rstd");
  const Tensor dy = dense(upstream, x.options().format);
  const Tensor dx = grads.allocate(0, x);
  const Tensor dgamma =
      grads.wanted(1) ? Tensor::empty({rows.m}, {.dtype = rstd.dtype(), .device = rstd.device()})
                      : Tensor();
  launch(RmsNormBackward{.x = rows.view(x).raw(),
                         .dy = rows.view(dy).raw(),
                         .gamma = gamma.raw(),
                         .rstd = rstd.raw(),
                         .dx = dx.defined() ? rows.view(dx).raw() : AnyView(),
                         .dgamma = dgamma.raw()});
  grads.set(0, dx);
  grads.set(1, rows.unflatten_gradient(dgamma));
}

}  // namespace gradus
