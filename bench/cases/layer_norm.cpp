#include "autograd/ops/layer_norm.h"

#include <cmath>

#include "bench/cases/row_norm.h"

namespace gradus {
namespace {

constexpr double kEps = 1e-5;

OpCase layer_norm_case(const RowNormVariant& v) {
  OpCase result = row_norm_case(v, true);
  result.forward = [v](std::span<const Tensor> in) {
    return layer_norm(in[0], v.normalized(), gamma_of(v, in), beta_of(v, in), kEps);
  };
  result.reference = [v](std::span<const ref::Array> in) {
    return ref::layer_norm(in[0], v.axes, gamma_of(v, in), beta_of(v, in), kEps).y;
  };
  result.reference_backward = [v](std::span<const ref::Array> in, const ref::Array& dy) {
    const ref::NormGradients g = ref::layer_norm_backward(in[0], v.axes, gamma_of(v, in), dy, kEps);
    std::vector<ref::Array> grads{g.dx};
    if (v.gamma) grads.push_back(g.dgamma);
    if (v.beta) grads.push_back(g.dbeta);
    return grads;
  };
  // Far from 0, each x - mean is exact to half an ulp of the mean only.
  result.scale = std::abs(v.mean) > 10 * v.std ? std::abs(v.mean) / v.std : 0;
  result.of_shape = with_shape(v, &RowNormVariant::shape, layer_norm_case);
  result.any_rank = v.axes == 1 && !v.channels_last;
  return result;
}

}  // namespace

std::vector<OpCase> layer_norm_cases() {
  std::vector<OpCase> cases;
  for (const RowNormVariant& variant : row_norm_variants())
    cases.push_back(layer_norm_case(variant));
  cases.push_back(layer_norm_case({.name = "no_beta", .shape = {5, 12}, .beta = false}));
  cases.push_back(
      layer_norm_case({.name = "plain", .shape = {5, 12}, .gamma = false, .beta = false}));
  return cases;
}

}  // namespace gradus
