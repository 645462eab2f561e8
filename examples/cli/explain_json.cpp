#include "examples/cli/explain_json.h"

#include <cmath>

#include "examples/cli/verdict_json.h"

namespace gradus::cli {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no infinities and no NaN.
Json number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

void put(Json& object, const char* name, const Tensor& tensor) {
  if (!tensor.defined()) return;
  Json values = Json::array();
  if (tensor.dtype() == DType::i64) {
    for (const int64_t value : tensor.to_vector<int64_t>()) values.push_back(value);
  } else {
    for (const double value : tensor.to_vector<double>()) values.push_back(number(value));
  }
  const std::vector<int64_t> shape(tensor.shape().begin(), tensor.shape().end());
  object[name] = {{"shape", shape}, {"values", values}};
}

Json inputs_json(const explain::Inputs& inputs) {
  Json json = Json::object();
  put(json, "x", inputs.x);
  put(json, "dy", inputs.dy);
  put(json, "gamma", inputs.gamma);
  put(json, "beta", inputs.beta);
  put(json, "running_mean", inputs.running_mean);
  put(json, "running_var", inputs.running_var);
  return json;
}

Json step_json(const explain::Step& step) {
  Json json{{"phase", step.phase == explain::Phase::forward ? "forward" : "backward"},
            {"name", step.name},
            {"formula", step.formula},
            {"why", step.why}};
  put(json, "value", step.value);
  if (!step.against.empty()) {
    json["against"] = step.against;
    json["difference"] = number(step.difference);
    json["bound"] = number(step.bound);
  }
  return json;
}

Json half_json(const explain::HalfNote& half) {
  Json json{{"text", half.text}};
  put(json, "x", half.x);
  put(json, "squares", half.squares);
  put(json, "wrong", half.wrong);
  put(json, "right", half.right);
  return json;
}

}  // namespace

Json explain_json(const explain::Derivation& d) {
  const explain::Setting& s = d.setting;
  Json json{{"schema", 1},        {"layer", to_string(s.layer)},
            {"groups", s.groups}, {"axes", s.axes},
            {"eps", s.eps},       {"training", s.training},
            {"size", s.size},     {"alpha", s.alpha},
            {"beta", s.beta},     {"k", s.k},
            {"m", d.m},           {"inputs", inputs_json(d.inputs)}};
  put(json, "sets", d.sets);
  put(json, "windows", d.windows);
  json["steps"] = json["saved"] = json["gradients"] = json["invariants"] = Json::array();
  for (const explain::Step& step : d.steps) json["steps"].push_back(step_json(step));
  for (const explain::SavedTensor& saved : d.saved) {
    Json one{{"name", saved.name}, {"why", saved.why}};
    put(one, "value", saved.value);
    json["saved"].push_back(one);
  }
  for (const explain::Gradient& gradient : d.gradients) {
    Json one{{"name", gradient.name},
             {"difference", number(gradient.difference)},
             {"bound", number(gradient.bound)}};
    put(one, "value", gradient.value);
    put(one, "finite", gradient.finite);
    json["gradients"].push_back(one);
  }
  for (const explain::Invariant& invariant : d.invariants) {
    json["invariants"].push_back({{"text", invariant.text},
                                  {"why", invariant.why},
                                  {"value", number(invariant.value)},
                                  {"bound", number(invariant.bound)},
                                  {"holds", json_of(invariant.verdict())}});
  }
  json["notes"] = d.notes;
  json["half"] = half_json(d.half);
  return json;
}

}  // namespace gradus::cli
