#include "autograd/ops/rms_norm.h"

#include "bench/cases/row_norm.h"

namespace gradus {
namespace {

constexpr double kEps = 1e-5;

OpCase rms_norm_case(const RowNormVariant& v) {
  OpCase result = row_norm_case(v, false);
  result.forward = [v](std::span<const Tensor> in) {
    return rms_norm(in[0], v.normalized(), gamma_of(v, in), kEps);
  };
  result.reference = [v](std::span<const ref::Array> in) {
    return ref::rms_norm(in[0], v.axes, gamma_of(v, in), kEps).y;
  };
  result.reference_backward = [v](std::span<const ref::Array> in, const ref::Array& dy) {
    const ref::NormGradients g = ref::rms_norm_backward(in[0], v.axes, gamma_of(v, in), dy, kEps);
    std::vector<ref::Array> grads{g.dx};
    if (v.gamma) grads.push_back(g.dgamma);
    return grads;
  };
  result.of_shape = with_shape(v, &RowNormVariant::shape, rms_norm_case);
  result.any_rank = v.axes == 1 && !v.channels_last;
  return result;
}

}  // namespace

std::vector<OpCase> rms_norm_cases() {
  std::vector<OpCase> cases;
  for (const RowNormVariant& variant : row_norm_variants()) cases.push_back(rms_norm_case(variant));
  return cases;
}

}  // namespace gradus
