// How element-wise kernels are shared out among threads; pure host code.
#pragma once

#include "cuda/plan.h"

namespace gradus {

// Packs of 16 bytes that a thread of a map of one operand has in flight: four where one wave of
// blocks then has them all, else one. (A map of two operands has one of each.)
inline constexpr int kWavePacks = 4;
constexpr int plan_map_packs(int64_t packs, int threads) {
  return packs <= kWavePacks * threads * kTargetBlocks ? kWavePacks : 1;
}

// The same of a map that writes a bit per element, at any size. (One that reads the bits: one.)
inline constexpr int kBitsPacks = 2;

// How often each thread of a copy writes a pack that repeats `count` times: up to 128 times where
// `tiles` blocks, which have all packs side by side, then fill the card, else up to 32.
inline Chunks plan_repeats(int64_t count, int64_t tiles) {
  const bool fill = tiles * ceil_div(count, 128) >= kTargetBlocks / 2;
  const int64_t chunks = ceil_div(count, fill ? 128 : 32);
  return {chunks, ceil_div(count, chunks)};
}

}  // namespace gradus
