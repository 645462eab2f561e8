#include "examples/cli/lesson_variant.h"

#include <algorithm>
#include <cmath>

#include "autograd/explain/slips.h"
#include "examples/cli/page.h"
#include "examples/cli/verdict_json.h"

namespace gradus::cli {
namespace {

using explain::Derivation;
using explain::Layer;
using nlohmann::json;
using Values = std::vector<double>;

Values values_of(const Derivation& derivation, std::string_view step) {
  return derivation.step(step).value.to_vector<double>();
}

json rounded_all(const Values& values) {
  json result = json::array();
  for (const double value : values) result.push_back(rounded(value));
  return result;
}

json rounded_all(const Tensor& tensor) { return rounded_all(tensor.to_vector<double>()); }

// Steps under the names that the page has for them; to be listed as {step, page's name}.
void add_steps(json& t, const Derivation& derivation,
               std::initializer_list<std::pair<const char*, const char*>> names) {
  for (const auto& [step, name] : names) t[name] = rounded_all(derivation.step(step).value);
}

// One object per set, of the steps that have one value per set.
void add_sets(json& out, const Derivation& derivation,
              std::initializer_list<std::pair<const char*, const char*>> names) {
  json sets = json::array();
  for (const auto& [step, name] : names) {
    const Values values = values_of(derivation, step);
    for (size_t i = 0; i < values.size(); ++i) {
      if (sets.size() <= i) sets.push_back({{"m", derivation.m}});
      sets[i][name] = rounded(values[i]);
    }
  }
  out["set"] = std::move(sets);
}

void add_norm(json& out, const Derivation& derivation) {
  const explain::Setting& setting = derivation.setting;
  const explain::Inputs& in = derivation.inputs;
  json& t = out["t"];
  add_steps(t, derivation, {{"xhat", "xhat"}, {"y", "y"}, {"d", "d"}});
  if (setting.is_evaluation()) {
    add_steps(t, derivation, {{"dx", "direct"}});
    add_sets(out, derivation, {{"mu", "mean"}, {"var", "var"}, {"rstd", "rstd"}});
  } else if (setting.has_mean()) {
    add_steps(t, derivation,
              {{"direct", "direct"}, {"mean", "mean"}, {"projection", "projection"}});
    add_sets(out, derivation,
             {{"mu", "mean"}, {"var", "var"}, {"rstd", "rstd"}, {"m1", "m1"}, {"m2", "m2"}});
  } else {
    add_steps(t, derivation, {{"direct", "direct"}, {"projection", "projection"}});
    add_sets(out, derivation, {{"var", "var"}, {"rstd", "rstd"}, {"m2", "m2"}});
  }
  out["eps"] = setting.eps;
  out["mode"] = setting.is_evaluation() ? "eval" : "train";
  out["param"] = explain::layout_of(setting, in.x.shape()).param;
  out["gamma"] = rounded_all(in.gamma);
  if (in.beta.defined()) out["beta"] = rounded_all(in.beta);
}

void add_response(json& out, const Derivation& derivation) {
  const explain::Setting& setting = derivation.setting;
  add_steps(out["t"], derivation,
            {{"denom", "denom"},
             {"y", "y"},
             {"direct", "direct"},
             {"t", "t"},
             {"neighbours", "neighbours"}});
  const int64_t before = setting.size / 2;
  out["window"] = {
      {"size", setting.size},   {"before", before},     {"after", setting.size - before - 1},
      {"alpha", setting.alpha}, {"beta", setting.beta}, {"k", setting.k}};
}

void add_softmax(json& out, const Derivation& derivation) {
  add_steps(out["t"], derivation, {{"y", "y"}, {"weighted", "direct"}});
  add_sets(out, derivation, {{"max", "max"}, {"total", "total"}, {"sum", "s"}});
  Values shift = values_of(derivation, "dx");
  const Values weighted = values_of(derivation, "weighted");
  for (size_t i = 0; i < shift.size(); ++i) shift[i] -= weighted[i];
  out["t"]["shift"] = rounded_all(shift);
}

json check_of(const std::string& name, const char* why, double value, double bound) {
  return {{"name", name},
          {"why", why},
          {"value", rounded(value)},
          {"bound", rounded(bound)},
          {"ok", json_of(explain::verdict_of(value, bound))}};
}

json checks_of(const Derivation& derivation) {
  json checks = json::array();
  for (const explain::Invariant& one : derivation.invariants)
    checks.push_back(check_of(one.text, one.why.c_str(), one.value, one.bound));
  Values differences, bounds;
  for (const explain::Step& step : derivation.steps) {
    if (step.against.empty()) continue;
    differences.push_back(step.difference);
    bounds.push_back(step.bound);
  }
  const explain::Worst worst = explain::worst_of(differences, bounds);
  checks.push_back(check_of("these steps, by plain loops, beside gradus's own kernels",
                            "The difference that is nearest to what rounding may add.",
                            worst.difference, worst.bound));
  for (const explain::Gradient& one : derivation.gradients) {
    checks.push_back(check_of(one.name + " beside finite differences",
                              "The loss, measured a little to both sides of each value.",
                              one.difference, one.bound));
  }
  return checks;
}

// The usual slips that say most, of those in the zoo.
bool is_shown(explain::Slip slip) {
  using enum explain::Slip;
  for (const explain::Slip shown :
       {mean_missing, projection_missing, gamma_outside, wrong_count, unbiased_variance,
        other_layer, training_formula, neighbours_missing, window_not_mirrored, alpha_undivided,
        sum_missing, sum_unweighted}) {
    if (slip == shown) return true;
  }
  return false;
}

// The dx that each of them gives, less the right one.
json slips_of(const Derivation& derivation) {
  const explain::Zoo zoo =
      explain::zoo_of(explain::problem_of(derivation.setting, derivation.inputs));
  const Values right = values_of(derivation, "dx");
  json slips = json::array();
  for (const explain::Candidate& candidate : zoo.dx) {
    if (!is_shown(candidate.slip)) continue;
    Values error = explain::values_of(explain::sum_of(candidate.terms));
    double largest = 0;
    for (size_t i = 0; i < error.size(); ++i) {
      error[i] -= right[i];
      largest = std::max(largest, std::abs(error[i]));
    }
    slips.push_back({{"name", explain::to_string(candidate.slip)},
                     {"text", candidate.text},
                     {"error", rounded_all(error)},
                     {"largest", rounded(largest)}});
  }
  return slips;
}

}  // namespace

json lesson_variant(const Derivation& derivation) {
  const explain::Inputs& in = derivation.inputs;
  json out;
  out["shape"] = std::vector<int64_t>(in.x.shape().begin(), in.x.shape().end());
  out["m"] = derivation.m;
  out["sets"] = derivation.sets.to_vector<int64_t>();
  out["t"] = {{"x", rounded_all(in.x)}, {"dy", rounded_all(in.dy)}};
  if (derivation.setting.is_norm()) add_norm(out, derivation);
  if (derivation.setting.layer == Layer::local_response_norm) add_response(out, derivation);
  if (derivation.setting.layer == Layer::softmax2d) add_softmax(out, derivation);
  add_steps(out["t"], derivation, {{"dx", "dx"}});
  for (const explain::Gradient& gradient : derivation.gradients) {
    if (gradient.name == "dx")
      out["t"]["fd"] = rounded_all(gradient.finite);
    else
      out[gradient.name] = rounded_all(gradient.value);
  }
  out["checks"] = checks_of(derivation);
  out["slips"] = slips_of(derivation);
  const explain::HalfNote& half = derivation.half;
  if (half.x.defined()) {
    out["half"] = {{"text", half.text},
                   {"x", rounded_all(half.x)},
                   {"squares", rounded_all(half.squares)},
                   {"wrong", rounded_all(half.wrong)},
                   {"right", rounded_all(half.right)}};
  }
  return out;
}

}  // namespace gradus::cli
