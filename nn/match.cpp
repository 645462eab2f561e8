#include "nn/match.h"

#include <unordered_map>

#include "core/error.h"

namespace gradus::nn {

// The slot of the gradient belongs to the tensor behind the handles.
bool is_same(const Tensor& a, const Tensor& b) { return &a.grad_state() == &b.grad_state(); }

std::vector<Tensor> match_by_name(const std::vector<NamedTensor>& own,
                                  const std::vector<NamedTensor>& given, std::string_view op) {
  std::unordered_map<std::string_view, const Tensor*> left;
  for (const NamedTensor& entry : given) left.emplace(entry.name, &entry.tensor);
  std::vector<Tensor> matched;
  for (const auto& [name, tensor] : own) {
    const auto found = left.find(name);
    check(found != left.end(), op, "this run has ", name, ", which the saved state lacks");
    const Tensor& other = *found->second;
    check(tensor.shape() == other.shape() && tensor.dtype() == other.dtype(), op, name, " is ",
          tensor.dtype(), tensor.shape(), " in this run and ", other.dtype(), other.shape(),
          " in the saved state");
    matched.push_back(other);
    left.erase(found);
  }
  for (const NamedTensor& entry : given) {
    check(!left.contains(entry.name), op, "the saved state has ", entry.name,
          ", which this run lacks");
  }
  return matched;
}

}  // namespace gradus::nn
