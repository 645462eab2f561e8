#include "autograd/explain/derivation.h"

#include <algorithm>

#include "autograd/explain/steps.h"
#include "autograd/gradcheck.h"
#include "core/error.h"

namespace gradus::explain {
namespace {

// Of each value, how far those of its group lie from their mean, as a power of two; 1 where they
// are all equal.
Values spreads(const Values& values, const Members& groups) {
  Values result(values.size(), 1);
  for (const std::vector<size_t>& group : groups) {
    const auto [least, most] = std::ranges::minmax(group, {}, [&](size_t i) { return values[i]; });
    if (values[least] == values[most]) continue;
    const double n = static_cast<double>(group.size());
    double sum = 0, squares = 0;
    for (const size_t i : group) sum += values[i];
    for (const size_t i : group) squares += (values[i] - sum / n) * (values[i] - sum / n);
    if (!(squares > 0)) continue;
    for (const size_t i : group) result[i] = std::ldexp(1.0, std::ilogb(std::sqrt(squares / n)));
  }
  return result;
}

double largest_or_one(const Tensor& tensor) {
  double largest = 1;
  for (const double value : tensor.to_vector<double>())
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  return largest;
}

// The forward's gradient by central differences, with respect to one of its inputs. Values of f64
// are best moved by about 2^-17 of their spread, where rounding and the neglected third derivative
// balance: of that of their set where y is not linear in them, since sets may differ by any factor.
Tensor differences(const Setting& setting, const Inputs& inputs, const Layout& layout,
                   Tensor Inputs::*which) {
  Inputs moved = inputs;
  Tensor& values = moved.*which;
  values = values.clone();
  const bool linear = which != &Inputs::x || setting.is_evaluation();
  const std::vector<int64_t> one_group(static_cast<size_t>(values.numel()));
  Values steps = spreads(values.to_vector<double>(),
                         linear ? members_of(one_group, 1) : members_of(layout.set, layout.sets));
  for (double& step : steps) step *= 0x1p-17;
  return finite_differences([&] { return library_forward(setting, moved); }, values, inputs.dy,
                            steps);
}

void add_gradient(Derivation& out, const Layout& layout, std::string name, const Tensor& value,
                  Tensor Inputs::*which) {
  if (!value.defined()) return;
  const Tensor finite = differences(out.setting, out.inputs, layout, which);
  const double difference =
      largest_difference(value.to_vector<double>(), finite.to_vector<double>());
  out.gradients.push_back({std::move(name), value, finite, difference});
}

// The channels that the window of each channel and its mirrored window hold.
Tensor windows_of(const Setting& setting, int64_t c) {
  const int64_t before = setting.size / 2, after = setting.size - before - 1;
  std::vector<int64_t> bounds;
  const auto add = [&](int64_t first, int64_t last) {
    bounds.push_back(std::max<int64_t>(first, 0));
    bounds.push_back(std::min(last + 1, c));
  };
  for (int64_t k = 0; k < c; ++k) {
    add(k - before, k + after);
    add(k - after, k + before);
  }
  return Tensor::from_vector(bounds, {c, 4});
}

}  // namespace

void add_invariant(Derivation& out, std::string text, std::string why, const Values& sums,
                   const Values& bounds) {
  Invariant worst{std::move(text), std::move(why), 0, 0};
  double share = -1;
  for (size_t s = 0; s < sums.size(); ++s) {
    const double value = std::abs(sums[s]);
    if (!std::isnan(share) && !(value / bounds[s] <= share)) {
      share = value / bounds[s];
      worst.value = value;
      worst.bound = bounds[s];
    }
  }
  out.invariants.push_back(worst);
}

double Step::bound() const { return 1e-9 * largest_or_one(value); }
double Gradient::bound() const { return 1e-6 * largest_or_one(value); }

const Step& Derivation::step(std::string_view name) const {
  const auto found = std::ranges::find(steps, name, &Step::name);
  check(found != steps.end(), to_string(setting.layer), "has no step ", name);
  return *found;
}

void check_derivable(const Setting& setting, const Shape& x) {
  check(checked_numel(x, to_string(setting.layer)) <= kMostDerived, to_string(setting.layer),
        "a derivation takes up to ", kMostDerived,
        " elements, each of which it moves to measure its gradient, got x ", x,
        ": a smaller x shows the same");
}

Derivation derive(const Setting& setting, Inputs inputs) {
  if (inputs.x.defined()) check_derivable(setting, inputs.x.shape());
  Derivation out;
  out.setting = setting;
  out.inputs = complete(setting, std::move(inputs), 0);
  const Layout layout = layout_of(setting, out.inputs.x.shape());
  const Library library = run_library(setting, out.inputs);
  out.m = layout.m;
  out.sets = Tensor::from_vector(layout.set, out.inputs.x.shape());
  switch (setting.layer) {
    case Layer::local_response_norm:
      out.windows = windows_of(setting, out.inputs.x.size(1));
      derive_response(out, layout, library);
      break;
    case Layer::softmax2d:
      derive_softmax(out, layout, library);
      break;
    default:
      derive_norm(out, layout, library);
  }
  add_gradient(out, layout, "dx", library.dx, &Inputs::x);
  add_gradient(out, layout, "dgamma", library.dgamma, &Inputs::gamma);
  add_gradient(out, layout, "dbeta", library.dbeta, &Inputs::beta);
  out.half = half_note(setting, out.inputs, layout);
  return out;
}

}  // namespace gradus::explain
