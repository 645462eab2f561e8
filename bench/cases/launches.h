// The argument structs of all ops: what each backend can launch, in CMakeLists.txt's order.
#pragma once

#include <string_view>
#include <vector>

#include "core/backend.h"

namespace gradus {

struct LaunchInfo {
  std::string_view op;    // as in CMakeLists.txt
  std::string_view name;  // "batch_norm_forward"
  Support support;
  Guarantee guarantee;
};

std::vector<LaunchInfo> all_launches();

}  // namespace gradus
