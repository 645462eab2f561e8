#include "bench/cases/launches.h"

#include "gradus_contracts.inc"

namespace gradus {

std::vector<LaunchInfo> all_launches() {
  return {
#define GRADUS_LAUNCH(op, Struct) {#op, Struct::name, Struct::support, Struct::guarantee()},
#include "gradus_launches.inc"
#undef GRADUS_LAUNCH
  };
}

}  // namespace gradus
