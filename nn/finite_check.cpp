#include "nn/finite_check.h"

#include <algorithm>
#include <cmath>

#include "autograd/grad_mode.h"
#include "nn/forward_observer.h"

namespace gradus::nn {

bool is_finite(const Tensor& tensor) {
  const std::vector<double> values = tensor.to_vector<double>();
  return std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); });
}

std::string first_non_finite(Module& model, const Tensor& x) {
  const NoGradGuard no_grad;
  if (!is_finite(x)) return "the input";
  for (const NamedTensor& p : model.named_parameters()) {
    if (!is_finite(p.tensor)) return "parameter " + p.name;
  }
  std::string found;
  const ForwardObserver observer([&](const ForwardEvent& event) {
    if (!found.empty() || is_finite(event.y)) return;
    const std::string place = event.path.empty() ? "the model" : event.path;
    found = concat("the output of ", place, " (", event.module.kind(), ")");
  });
  model(x);
  return found;
}

}  // namespace gradus::nn
