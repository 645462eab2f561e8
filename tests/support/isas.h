// The CPU's instruction sets that gradus was built for and that this processor has.
#pragma once

#include <vector>

#include "core/error.h"
#include "cpu/context.h"

namespace gradus::test {

inline std::vector<Isa> usable_isas() {
  const Isa before = cpu().isa();
  std::vector<Isa> usable;
  for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
    try {
      cpu().set_isa(isa);
      usable.push_back(isa);
    } catch (const Error&) {
    }
  }
  cpu().set_isa(before);
  return usable;
}

}  // namespace gradus::test
