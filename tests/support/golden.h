// Reads the golden values that tests/golden/make_golden.py took from PyTorch.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/ops/window.h"
#include "tests/support/paths.h"
#include "tests/support/reference_array.h"

namespace gradus::ref {

using Json = nlohmann::json;

// The cases of tests/golden/<name>.json, by value: safe to walk in a range-for.
inline Json golden_cases(const std::string& name) {
  std::ifstream file(test::source_path("tests/golden/" + name + ".json"));
  if (!file) throw std::runtime_error("golden file missing: " + name + ".json");
  return Json::parse(file).at("cases");
}

inline Array golden_array(const Json& json) {
  const auto dims = json.at("shape").get<std::vector<int64_t>>();
  return array(Shape(dims), json.at("data").get<std::vector<double>>());
}

// The tensor of that name, or an absent Array.
inline Array golden_array(const Json& group, const std::string& name) {
  return group.contains(name) ? golden_array(group.at(name)) : Array{};
}

// The two numbers of that name, (h, w).
inline Pair golden_pair(const Json& group, const std::string& name) {
  const auto values = group.at(name).get<std::vector<int64_t>>();
  return {values.at(0), values.at(1)};
}

}  // namespace gradus::ref
