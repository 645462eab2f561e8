// Splitting a kernel's work into tiles whose bounds depend on the shape only, never on the number
// of threads: every tile, and so every sum, comes out the same for any team.
#pragma once

#include <algorithm>

#include "cpu/context.h"

namespace gradus::GRADUS_ISA {

// Elements that one tile of element-wise work should have: 64 KB of f32, which a second-level cache
// holds a few times over, and enough work to outweigh handing it to a thread.
inline constexpr int64_t kTile = 16384;

// Calls f(begin, end) for consecutive ranges of at most `tile` items that cover [0, count).
template <class F>
void parallel_tiles(Cpu& cpu, int64_t count, int64_t tile, F&& f) {
  const int64_t tiles = (count + tile - 1) / tile;
  cpu.parallel(tiles, [&](int64_t i) { f(i * tile, std::min(count, (i + 1) * tile)); });
}

}  // namespace gradus::GRADUS_ISA
