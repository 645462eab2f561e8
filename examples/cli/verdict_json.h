// What JSON says of a difference and its bound.
#pragma once

#include <nlohmann/json.hpp>

#include "autograd/explain/derivation.h"

namespace gradus::cli {

// Whether it holds; null where that cannot be told.
inline nlohmann::json json_of(explain::Verdict verdict) {
  if (verdict == explain::Verdict::unknown) return nullptr;
  return verdict == explain::Verdict::holds;
}

}  // namespace gradus::cli
