#include "autograd/ops/local_response_norm.h"

#include <algorithm>
#include <cmath>

#include "autograd/ops/arithmetic.h"
#include "autograd/tape.h"
#include "core/launch.h"
#include "core/ops/local_response_norm.h"
#include "core/tolerance.h"

namespace gradus {
namespace {

struct LocalResponseNormNode final : Node {
  Saved x;
  int64_t size;
  double alpha, beta, k;

  std::string_view name() const override { return "local_response_norm"; }
  void backward(const Tensor& dy, Gradients& grads) override;
};

void check_arguments(const Tensor& x, int64_t size, double alpha, double beta, double k) {
  constexpr std::string_view op = "local_response_norm";
  check(x.rank() >= 2 && x.rank() <= 5, op, "expected [n, c, ...] of rank 2 to 5, got ", x);
  check(is_floating(x.dtype()), op, "expected a floating dtype, got ", x);
  check(size >= 1, op, "size must be at least 1, got ", size);
  check(alpha >= 0 && k >= 0, op, "alpha and k must not be negative, got alpha ", alpha, " and k ",
        k);
  check(alpha > 0 || k > 0, op, "alpha and k must not both be 0: the denominator would be 0");
  check(std::isfinite(alpha) && std::isfinite(beta) && std::isfinite(k), op,
        "alpha, beta and k must be finite, got ", alpha, ", ", beta, " and ", k);
}

}  // namespace

Tensor local_response_norm(const Tensor& input, int64_t size, double alpha, double beta, double k) {
  check_arguments(input, size, alpha, beta, k);
  const Tensor x = dense_either(input);
  // The squares do not count then, not even where they overflow. The factor is finite, so that 0
  // stays 0.
  if (alpha == 0) return x * std::min(std::pow(k, -beta), largest_of(acc_dtype(x.dtype())));
  Tensor y = empty_like(x);
  launch(LocalResponseNormForward{
      .x = x.raw(), .y = y.raw(), .denom = {}, .size = size, .alpha = alpha, .beta = beta, .k = k});
  if (auto node = make_node<LocalResponseNormNode>(x)) {
    node->x = Saved(x);
    node->size = size;
    node->alpha = alpha;
    node->beta = beta;
    node->k = k;
    attach(y, std::move(node));
  }
  return y;
}

void LocalResponseNormNode::backward(const Tensor& upstream, Gradients& grads) {
  const Tensor x = this->x.get(name(), "x");
  const Tensor dy = dense(upstream, x.options().format);
  const Tensor dx = grads.allocate(0, x);
  if (!dx.defined()) return;
  launch(LocalResponseNormBackward{.x = x.raw(),
                                   .dy = dy.raw(),
                                   .dx = dx.raw(),
                                   .size = size,
                                   .alpha = alpha,
                                   .beta = beta,
                                   .k = k});
  grads.set(0, dx);
}

Tensor local_response_norm_denom(const Tensor& input, int64_t size, double alpha, double k) {
  check_arguments(input, size, alpha, 1.0, k);
  if (grad_enabled() && input.requires_grad()) {
    fail(ErrorCode::autograd, "local_response_norm_denom",
         "the denominators carry no history; call it on x.detach() or under NoGradGuard");
  }
  const Tensor x = dense_either(input);
  TensorOptions options = x.options();
  options.dtype = acc_dtype(x.dtype());
  if (alpha == 0) return Tensor::full(x.shape(), k, options);
  Tensor denom = Tensor::empty(x.shape(), options);
  launch(LocalResponseNormForward{.x = x.raw(),
                                  .y = {},
                                  .denom = denom.raw(),
                                  .size = size,
                                  .alpha = alpha,
                                  .beta = 1,
                                  .k = k});
  return denom;
}

}  // namespace gradus
