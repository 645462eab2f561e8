// Whether two tensors are one, and pairing two lists of named tensors.
#pragma once

#include <string_view>
#include <vector>

#include "nn/module.h"

namespace gradus::nn {

// Whether both are handles of one tensor, with one gradient; views of its memory are not.
bool is_same(const Tensor& a, const Tensor& b);

// For each tensor of `own` the one of `given` with the same name. Throws invalid_argument naming
// `op` and the first difference (in the order of `own`, then of `given`): a name that only one side
// has, a shape or a dtype.
std::vector<Tensor> match_by_name(const std::vector<NamedTensor>& own,
                                  const std::vector<NamedTensor>& given, std::string_view op);

}  // namespace gradus::nn
