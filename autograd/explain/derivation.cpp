#include "autograd/explain/derivation.h"

#include <algorithm>
#include <limits>

#include "autograd/explain/steps.h"
#include "autograd/gradcheck.h"
#include "core/error.h"

namespace gradus::explain {
namespace {

// An input whose gradient is measured, and what is known of it.
struct Moved {
  Tensor Inputs::*which;
  const Expected& expected;
  Values scale;          // of each element, as in Motion
  Values loss_rounding;  // of each element: of the part of the loss that moving it changes
  Values size;           // of each element: of what adds up to it, or to others of its set
};

// How far x is moved. Rounding of the forward adds about 2^-53·max(scale, |x|)/h to what is
// measured, in units of y over scale, and the neglected third derivative (h/scale)²: they balance
// at the cube root. A linear y neglects nothing: the further, the better.
double step_of(double x, double scale, double furthest) {
  scale = std::max({std::numeric_limits<double>::min(), 0x1p-50 * std::abs(x), scale});
  return std::min(scale * std::cbrt(0x1p-53 * std::max(1.0, std::abs(x) / scale)), furthest);
}

double largest_or_one(const Values& values) {
  double largest = 1;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

// How far each element may be from what is measured by steps of h.
Values bounds_of(const Moved& moved, const Values& h) {
  return each(h.size(), [&](size_t i) {
    constexpr double kThirdDerivative = 16;  // more than that of any layer, in terms and scales
    const double share = h[i] / moved.scale[i];
    const double bound = allowance(moved.expected.gradient[i]) + moved.loss_rounding[i] / h[i] +
                         kThirdDerivative * share * share * moved.expected.terms[i];
    const bool tells = bound < moved.size[i] || moved.size[i] == 0;  // of nothing only 0 is made
    return tells ? bound : INFINITY;
  });
}

// The forward's gradient by central differences, with respect to one of its inputs, beside the
// backward's.
void add_gradient(Derivation& out, std::string name, const Tensor& value, const Moved& moved) {
  if (!value.defined()) return;
  Inputs inputs = out.inputs;
  Tensor& input = inputs.*moved.which;
  input = input.clone();
  const Values x = input.to_vector<double>();
  const double furthest = largest_or_one(x);
  const Values h =
      each(x.size(), [&](size_t i) { return step_of(x[i], moved.scale[i], furthest); });
  Gradient one{.name = std::move(name),
               .value = value,
               .finite = finite_differences([&] { return library_forward(out.setting, inputs); },
                                            input, inputs.dy, h),
               .bounds = bounds_of(moved, h)};
  const Worst worst = one.worst(value);
  one.difference = worst.difference;
  one.bound = worst.bound;
  out.gradients.push_back(std::move(one));
}

// Of each element: the largest of its set.
Values largest_of_set(const Layout& layout, const Values& values) {
  Values largest(static_cast<size_t>(layout.sets));
  for (size_t i = 0; i < values.size(); ++i) {
    double& most = largest[at(layout.set, i)];
    most = larger(most, values[i]);
  }
  return each(values.size(), [&](size_t i) { return largest[at(layout.set, i)]; });
}

// Beside all gradients of the library.
void add_gradients(Derivation& out, const Layout& layout, const Library& library,
                   const Motion& motion) {
  const Values dy = out.inputs.dy.to_vector<double>();
  const Numbers terms =
      each(dy.size(), [&](size_t i) { return Number(std::abs(dy[i]) * allowance(motion.y[i])); });
  const Values of_sets = values_of(sum_over_sets(layout, terms));
  add_gradient(out, "dx", library.dx,
               {&Inputs::x, motion.dx, motion.scale,
                each(dy.size(), [&](size_t i) { return of_sets[at(layout.set, i)]; }),
                largest_of_set(layout, motion.dx.terms)});
  if (layout.params == 0) return;
  const Values of_params = values_of(sum_over_params(layout, terms));
  const Values linear(of_params.size(), INFINITY);
  add_gradient(out, "dgamma", library.dgamma,
               {&Inputs::gamma, motion.dgamma, linear, of_params, motion.dgamma.terms});
  add_gradient(out, "dbeta", library.dbeta,
               {&Inputs::beta, motion.dbeta, linear, of_params, motion.dbeta.terms});
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

Worst Gradient::worst(const Tensor& gradient) const {
  const Values claimed = gradient.to_vector<double>(), measured = finite.to_vector<double>();
  return worst_of(each(bounds.size(), [&](size_t i) { return std::abs(claimed[i] - measured[i]); }),
                  bounds);
}

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
  const bool response = setting.layer == Layer::local_response_norm;
  if (response) out.windows = windows_of(setting, out.inputs.x.size(1));
  add_gradients(out, layout, library,
                response                            ? derive_response(out, layout, library)
                : setting.layer == Layer::softmax2d ? derive_softmax(out, layout, library)
                                                    : derive_norm(out, layout, library));
  out.half = half_note(setting, out.inputs, layout);
  return out;
}

}  // namespace gradus::explain
