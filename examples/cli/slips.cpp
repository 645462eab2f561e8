// The usual slips of a normalization's backward, made on purpose.
#include <algorithm>
#include <cmath>

#include "examples/cli/lesson_variant.h"
#include "examples/cli/page.h"

namespace gradus::cli {
namespace {

using explain::Derivation;
using explain::Layer;
using nlohmann::json;
using Values = std::vector<double>;

struct Slip {
  const char* name;
  const char* formula;  // as markup
  const char* says;
  Values error;  // wrong dx - right dx
};

json to_json(const Slip& slip) {
  double largest = 0;
  json error = json::array();
  for (const double value : slip.error) {
    largest = std::max(largest, std::abs(value));
    error.push_back(rounded(value));
  }
  return {{"name", slip.name},
          {"formula", slip.formula},
          {"says", slip.says},
          {"error", error},
          {"largest", rounded(largest)}};
}

template <class F>
Values each(size_t count, F&& f) {
  Values values(count);
  for (size_t i = 0; i < count; ++i) values[i] = f(i);
  return values;
}

Values step(const Derivation& derivation, std::string_view name) {
  return derivation.step(name).value.to_vector<double>();
}

Values means_of_sets(const Derivation& derivation, const Values& values) {
  const std::vector<int64_t> sets = derivation.sets.to_vector<int64_t>();
  Values sums(static_cast<size_t>(*std::ranges::max_element(sets)) + 1);
  for (size_t i = 0; i < values.size(); ++i) sums[static_cast<size_t>(sets[i])] += values[i];
  return each(values.size(), [&](size_t i) {
    return sums[static_cast<size_t>(sets[i])] / static_cast<double>(derivation.m);
  });
}

// dx with gamma in front of the sums instead of in them.
Values gamma_outside(const Derivation& derivation) {
  const explain::Setting& setting = derivation.setting;
  const explain::Inputs& in = derivation.inputs;
  const auto param = explain::layout_of(setting, in.x.shape()).param;
  const Values gamma = in.gamma.to_vector<double>(), dy = in.dy.to_vector<double>(),
               xhat = step(derivation, "xhat"), rstd = step(derivation, "rstd");
  const auto sets = derivation.sets.to_vector<int64_t>();
  const Values m1 = means_of_sets(derivation, dy);
  const Values m2 =
      means_of_sets(derivation, each(dy.size(), [&](size_t i) { return dy[i] * xhat[i]; }));
  return each(dy.size(), [&](size_t i) {
    const double centred = dy[i] - (setting.has_mean() ? m1[i] : 0) - xhat[i] * m2[i];
    return gamma[static_cast<size_t>(param[i])] * rstd[static_cast<size_t>(sets[i])] * centred;
  });
}

json norm_slips(const Derivation& derivation) {
  if (derivation.setting.is_evaluation()) return json::array();
  const bool centred = derivation.setting.has_mean();
  const Values dx = step(derivation, "dx"), projection = step(derivation, "projection");
  const Values mean = centred ? step(derivation, "mean") : Values(dx.size());
  const size_t count = dx.size();
  json slips = json::array();
  if (centred) {
    slips.push_back(to_json({"mean term left out", "rstd·(<i>d</i> − <i>x̂</i>·<i>m</i>₂)",
                             "Σ dx over a set is then no longer 0.",
                             each(count, [&](size_t i) { return -mean[i]; })}));
  }
  slips.push_back(
      to_json({"projection left out", centred ? "rstd·(<i>d</i> − <i>m</i>₁)" : "rstd·<i>d</i>",
               "dx is then no longer at right angles to x̂.",
               each(count, [&](size_t i) { return -projection[i]; })}));
  const Values outside = gamma_outside(derivation);
  const bool per_channel = derivation.setting.has_running();
  slips.push_back(to_json(
      {"γ pulled out of the sums",
       centred ? "<i>γ</i>·rstd·(<i>dy</i> − mean(<i>dy</i>) − <i>x̂</i>·mean(<i>dy</i>·<i>x̂</i>))"
               : "<i>γ</i>·rstd·(<i>dy</i> − <i>x̂</i>·mean(<i>dy</i>·<i>x̂</i>))",
       per_channel
           ? "Harmless here: γ is one number for the whole set. In GroupNorm, LayerNorm and "
             "RMSNorm it is not."
           : "With all γ equal, this slip cannot be seen.",
       each(count, [&](size_t i) { return outside[i] - dx[i]; })}));
  if (derivation.m > 1) {
    const double m = static_cast<double>(derivation.m), off = m / (m - 1) - 1;
    slips.push_back(to_json(
        {"divided by m − 1",
         centred ? "<i>m</i>₁, <i>m</i>₂ = Σ…/(<i>m</i> − 1)" : "<i>m</i>₂ = Σ…/(<i>m</i> − 1)",
         "The unbiased count belongs to running_var alone.",
         each(count, [&](size_t i) { return off * (mean[i] + projection[i]); })}));
  }
  return slips;
}

json response_slips(const Derivation& derivation) {
  const explain::Setting& o = derivation.setting;
  const Values x = derivation.inputs.x.to_vector<double>(), t = step(derivation, "t"),
               right = step(derivation, "neighbours");
  const auto windows = derivation.windows.to_vector<int64_t>();
  const Shape& shape = derivation.inputs.x.shape();
  const int64_t c = shape[1], s = shape.numel() / (shape[0] * c);
  const double scale = -2 * o.beta * o.alpha / static_cast<double>(o.size);
  const Values forward_window = each(x.size(), [&](size_t i) {
    const int64_t index = static_cast<int64_t>(i), k = index / s % c;
    const auto* bounds = &windows[static_cast<size_t>(4 * k)];
    double sum = 0;
    for (int64_t j = bounds[0]; j < bounds[1]; ++j)
      sum += t[static_cast<size_t>(index + (j - k) * s)];
    return scale * x[i] * sum - right[i];
  });
  return json::array(
      {to_json({"neighbours left out", "<i>dy</i>·denom<sup>−β</sup>",
                "Each denominator is taken for a constant.",
                each(x.size(), [&](size_t i) { return -right[i]; })}),
       to_json({"window not mirrored", "Σ<i>t</i> over the window of the forward",
                o.size % 2 == 1 ? "Harmless here: windows of odd size are their own mirror."
                                : "Even windows reach further down than up, and so must the "
                                  "backward's reach further up.",
                forward_window})});
}

}  // namespace

json slips_of(const Derivation& derivation) {
  if (derivation.setting.is_norm()) return norm_slips(derivation);
  if (derivation.setting.layer == Layer::local_response_norm) return response_slips(derivation);
  const Values dx = step(derivation, "dx"), weighted = step(derivation, "weighted");
  return json::array({to_json({"shift left out", "<i>y</i>·<i>dy</i>",
                               "Σ dx over the channels of a pixel is then no longer 0.",
                               each(dx.size(), [&](size_t i) { return weighted[i] - dx[i]; })})});
}

}  // namespace gradus::cli
