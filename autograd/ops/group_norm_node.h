// What group_norm and instance_norm share: the checks, the launch and the node.
#pragma once

#include "autograd/ops/norm_terms.h"
#include "core/ops/group_norm.h"

namespace gradus::detail {

struct GroupNormCall {
  std::string_view op;  // for error texts, a literal
  int64_t groups = 1;
  double eps = 1e-5;
  NormStatistics* saved = nullptr;  // receives mean and rstd
  Tensor* var = nullptr;            // receives the biased variance [n, groups]
};

Tensor normalize_groups(const GroupNormCall& call, const Tensor& x, const Tensor& gamma,
                        const Tensor& beta);

}  // namespace gradus::detail
