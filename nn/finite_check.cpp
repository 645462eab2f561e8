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

namespace {

std::string first_non_finite_parameter(Module& model) {
  for (const NamedTensor& p : model.named_parameters()) {
    if (!is_finite(p.tensor)) return "parameter " + p.name;
  }
  return "";
}

}  // namespace

std::string first_non_finite_state(Module& model) {
  std::string found = first_non_finite_parameter(model);
  if (!found.empty()) return found;
  for (const NamedTensor& entry : model.state_dict()) {
    if (is_floating(entry.tensor.dtype()) && !is_finite(entry.tensor)) {
      return "buffer " + entry.name;
    }
  }
  return "";
}

std::string first_non_finite(Module& model, const Tensor& x) {
  const NoGradGuard no_grad;
  if (!is_finite(x)) return "the input";
  // Not the buffers: the forward that failed has written them.
  std::string found = first_non_finite_parameter(model);
  if (!found.empty()) return found;
  const ForwardObserver observer([&](const ForwardEvent& event) {
    if (!found.empty() || is_finite(event.y)) return;
    const std::string place = event.path.empty() ? "the model" : event.path;
    found = concat("the output of ", place, " (", event.module.kind(), ")");
  });
  model(x);
  return found;
}

}  // namespace gradus::nn
