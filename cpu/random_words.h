// Random bits for many neighbouring elements, made together so that they fill vectors.
#pragma once

#include "core/ops/random.h"
#include "cpu/context.h"

namespace gradus::GRADUS_ISA {

inline constexpr int64_t kRandomGroup = 64;  // blocks

// words[k][i] = word k of block first + i of the call that `state` stands at.
using RandomWords = uint32_t[4][kRandomGroup];

inline void random_words(const int64_t* state, int64_t first, RandomWords& words) {
  for (int64_t i = 0; i < kRandomGroup; ++i) {
    const Philox4 block = random_block(state, first + i);
    for (int k = 0; k < 4; ++k) words[k][i] = block.words[k];
  }
}

}  // namespace gradus::GRADUS_ISA
