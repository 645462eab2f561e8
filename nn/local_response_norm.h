// LocalResponseNorm, as
// https://pytorch.org/docs/stable/generated/torch.nn.LocalResponseNorm.html
#pragma once

#include "autograd/ops/local_response_norm.h"
#include "nn/module.h"

namespace gradus::nn {

// x [n, c, ...] of rank 2 to 5; formula in core/ops/local_response_norm.h. No parameters.
class LocalResponseNorm final : public Module {
 public:
  explicit LocalResponseNorm(int64_t size, double alpha = 1e-4, double beta = 0.75, double k = 1.0)
      : size(size), alpha(alpha), beta(beta), k(k) {
    check(size >= 1, "local_response_norm", "size must be at least 1, got ", size);
    check(alpha >= 0 && k >= 0 && alpha + k > 0, "local_response_norm",
          "alpha and k must not be negative, nor both 0, got alpha ", alpha, " and k ", k);
  }

  std::string_view kind() const override { return "LocalResponseNorm"; }
  Tensor forward(const Tensor& x) override { return local_response_norm(x, size, alpha, beta, k); }
  SumLengths sum_lengths(const Shape&, const Shape&) override { return {.y = size, .dx = size}; }

  int64_t size;
  double alpha, beta, k;
};

}  // namespace gradus::nn
