#include "autograd/explain/setting.h"

#include <algorithm>
#include <cmath>

#include "autograd/explain/judge.h"
#include "core/error.h"
#include "core/random.h"

namespace gradus::explain {

std::string_view to_string(Layer layer) { return kLayerNames[static_cast<size_t>(layer)]; }

Layer parse_layer(std::string_view name) {
  const auto found = std::ranges::find(kLayerNames, name);
  if (found == kLayerNames.end()) {
    std::string names;
    for (const std::string_view one : kLayerNames) names += concat(names.empty() ? "" : ", ", one);
    check(false, "explain", "expected one of ", names, ", got '", name, "'");
  }
  return static_cast<Layer>(found - kLayerNames.begin());
}

namespace {

// Extents of the axes that one set of layer_norm or rms_norm runs over.
Shape row_shape(const Setting& setting, const Shape& x) {
  const int axes = setting.axes != 0 ? setting.axes : x.rank() - 1;
  check(axes >= 1 && axes <= x.rank(), to_string(setting.layer), "a set cannot run over the last ",
        axes, " axes of ", x);
  Shape row;
  for (int i = x.rank() - axes; i < x.rank(); ++i) row.append(x[i]);
  return row;
}

void check_shape(const Setting& setting, const Shape& x) {
  const std::string_view op = to_string(setting.layer);
  const int least = setting.layer == Layer::softmax2d ? 3 : 2;
  const int most = setting.is_row_norm() ? kMaxRank : 5;
  check(x.rank() >= least && x.rank() <= most, op, "expected x of ", least, " to ", most,
        " axes, got shape ", x);
  check(checked_numel(x, op) > 0, op, "there is nothing to explain in an empty tensor, ", x);
  check(setting.layer != Layer::group_norm || (setting.groups > 0 && x[1] % setting.groups == 0),
        op, "the ", x[1], " channels of ", x, " do not fall into ", setting.groups, " groups");
  check(setting.layer != Layer::batch_norm || setting.is_evaluation() || x.numel() > x[1], op,
        "training needs more than one value per channel, got ", x);
}

Layout row_layout(const Setting& setting, const Shape& x) {
  Layout layout;
  layout.per_param = row_shape(setting, x);
  layout.m = layout.params = layout.per_param.numel();
  layout.sets = layout.samples = x.numel() / layout.m;
  layout.per_set = {layout.sets};
  for (int64_t i = 0; i < x.numel(); ++i) {
    layout.set.push_back(i / layout.m);
    layout.param.push_back(i % layout.m);
    layout.sample.push_back(i / layout.m);
  }
  return layout;
}

// The number of the set of channel k and position j of sample i.
int64_t set_number(const Setting& setting, const Layout& layout, int64_t c, int64_t s, int64_t i,
                   int64_t k, int64_t j) {
  if (!setting.is_norm()) return i * s + j;
  if (layout.per_set.rank() == 1) return k;
  return i * layout.per_set[1] + k / (c / layout.per_set[1]);
}

}  // namespace

Layout layout_of(const Setting& setting, const Shape& x) {
  check_shape(setting, x);
  if (setting.is_row_norm()) return row_layout(setting, x);
  const int64_t n = x[0], c = x[1], s = x.numel() / (n * c);
  Layout layout;
  layout.samples = n;
  if (!setting.is_norm()) {
    layout.per_set = {n, s};
  } else if (setting.layer == Layer::batch_norm || setting.is_evaluation()) {
    layout.per_set = {c};
  } else {
    layout.per_set = {n, setting.layer == Layer::group_norm ? setting.groups : c};
  }
  layout.sets = layout.per_set.numel();
  layout.m = x.numel() / layout.sets;
  layout.params = setting.is_norm() ? c : 0;
  layout.per_param = {layout.params};
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t k = 0; k < c; ++k) {
      for (int64_t j = 0; j < s; ++j) {
        layout.set.push_back(set_number(setting, layout, c, s, i, k, j));
        layout.param.push_back(k);
        layout.sample.push_back(i);
      }
    }
  }
  return layout;
}

bool gamma_varies(const Layout& layout, const Tensor& gamma) {
  const std::vector<double> values = gamma.to_vector<double>();
  std::vector<double> first(static_cast<size_t>(layout.sets), NAN);
  for (size_t i = 0; i < layout.set.size(); ++i) {
    const double value = values[static_cast<size_t>(layout.param[i])];
    double& of_set = first[static_cast<size_t>(layout.set[i])];
    if (std::isnan(of_set)) of_set = value;
    if (value != of_set) return true;
  }
  return false;
}

Shape default_shape(const Setting& setting) {
  switch (setting.layer) {
    case Layer::layer_norm:
    case Layer::rms_norm:
      return {3, 5};
    case Layer::group_norm:
      check(setting.groups <= 1024, to_string(setting.layer), "give a shape for ", setting.groups,
            " groups: up to 1024 have a default");
      return {3, 2 * setting.groups, 3};  // n·s = 9 is not m = 6
    case Layer::local_response_norm:
      return {2, 6, 2};
    case Layer::softmax2d:
      return {2, 4, 1, 3};
    default:
      return {2, 3, 2, 2};
  }
}

namespace {

// Tenths from `low` to `high`, of either sign when `mirrored`; neighbours differ.
Tensor draw(const Shape& shape, double low, double high, bool mirrored, PhiloxSequence& random) {
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size();) {
    const auto steps = static_cast<uint64_t>(std::lround(10 * (high - low))) + 1;
    double value = std::round(10 * low + static_cast<double>(random.below(steps))) / 10;
    if (mirrored && random.below(2) == 1) value = -value;
    values[i] = value;
    if (i == 0 || value != values[i - 1]) ++i;
  }
  return Tensor::from_vector(values, shape);
}

// Where gamma would fit if the sets of a row norm ran over the last axis of x only.
std::string_view last_axis_hint(const Setting& setting, const Shape& x, const Tensor& param) {
  const bool fits = setting.is_row_norm() && param.shape() == Shape{x[x.rank() - 1]};
  return fits ? "; --axes 1 normalizes over the last axis only" : "";
}

void check_input(const Setting& setting, std::string_view name, const Tensor& tensor,
                 const Shape& shape, const Shape& x) {
  const bool fits =
      tensor.dtype() == DType::f64 && tensor.device() == kCpu && tensor.shape() == shape;
  if (!fits) {
    check(false, to_string(setting.layer), name, " must be f64", shape, " on the CPU, got ", tensor,
          last_axis_hint(setting, x, tensor));
  }
  check_finite(setting, name, tensor);
}

// No batch gives a negative one, but a file may hold any.
void check_running_var(const Setting& setting, const std::vector<double>& running_var) {
  for (const double var : running_var) {
    check(var >= 0 || var + setting.eps > 0, to_string(setting.layer), "running_var holds ", var,
          ", and eps is ", setting.eps, ": rstd is not finite, from which nothing can be told");
  }
}

}  // namespace

void check_finite(const Setting& setting, std::string_view what, const Tensor& tensor) {
  check(!tensor.defined() || is_finite(tensor.to_vector<double>()), to_string(setting.layer), what,
        " holds infinities or NaN, from which nothing can be told");
}

void check_variance(const Setting& setting, const Inputs& inputs) {
  if (setting.is_evaluation()) check_running_var(setting, inputs.running_var.to_vector<double>());
  if (!setting.is_norm() || setting.eps > 0) return;
  const Layout layout = layout_of(setting, inputs.x.shape());
  // Of each set: the largest square of what its x differ by, which says of equal ones, and of those
  // whose squares are too small for f64, what a rounded variance does not.
  std::vector<double> spread(static_cast<size_t>(layout.sets));
  std::vector<double> first(spread.size(), setting.has_mean() ? NAN : 0.0);
  if (setting.is_evaluation()) {
    spread = inputs.running_var.to_vector<double>();
  } else {
    const std::vector<double> x = inputs.x.to_vector<double>();
    for (size_t i = 0; i < x.size(); ++i) {
      const auto set = static_cast<size_t>(layout.set[i]);
      if (std::isnan(first[set])) first[set] = x[i];
      const double difference = x[i] - first[set];
      spread[set] = std::max(spread[set], difference * difference);
    }
  }
  const auto constant = std::ranges::find(spread, 0.0);
  check(constant == spread.end(), to_string(setting.layer), "the ",
        setting.has_mean() ? "variance" : "mean square", " of set ", constant - spread.begin(),
        " is 0, and so is eps: rstd is infinite, from which nothing can be told");
}

Inputs complete(const Setting& setting, Inputs inputs, uint64_t seed) {
  check(inputs.x.defined(), to_string(setting.layer), "there is no x");
  const Shape& shape = inputs.x.shape();
  const Layout layout = layout_of(setting, shape);
  PhiloxSequence random(seed, random_stream::kTensor + 1);
  const auto fill = [&](std::string_view name, Tensor& tensor, bool wanted, const Shape& wants,
                        double low, double high, bool mirrored) {
    check(wanted || !tensor.defined(), to_string(setting.layer), "has no ", name);
    if (!wanted) return;
    if (!tensor.defined()) tensor = draw(wants, low, high, mirrored, random);
    check_input(setting, name, tensor, wants, shape);
  };
  const bool affine = layout.params > 0;
  const bool running = setting.layer == Layer::batch_norm || setting.is_evaluation();
  fill("x", inputs.x, true, shape, 0, 0, false);
  fill("dy", inputs.dy, true, shape, 0.5, 1.5, true);
  fill("gamma", inputs.gamma, affine, layout.per_param, 0.5, 2.0, true);
  fill("beta", inputs.beta, affine && setting.layer != Layer::rms_norm, layout.per_param, -1.0, 1.0,
       false);
  fill("running_mean", inputs.running_mean, running, layout.per_param, -0.5, 0.5, false);
  fill("running_var", inputs.running_var, running, layout.per_param, 0.5, 2.0, false);
  return inputs;
}

Inputs draw_inputs(const Setting& setting, const Shape& x, uint64_t seed) {
  layout_of(setting, x);
  PhiloxSequence random(seed, random_stream::kTensor);
  return complete(setting, {.x = draw(x, -1.5, 2.5, false, random)}, seed);
}

}  // namespace gradus::explain
