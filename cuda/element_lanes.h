// Threads for rows of single elements, in shared memory; pure host code.
#pragma once

#include "cuda/plan.h"

namespace gradus {

// Threads along each of `rows` rows of `cols` single elements, of all `threads` that share the
// rows: a power of two that takes the fewest steps, of which starting a row and adding it up cost
// some.
inline int lanes_of_elements(int64_t rows, int64_t cols, int64_t threads) {
  int64_t best = 32, fewest = INT64_MAX, folds = 0;
  for (int64_t lanes = 1; lanes <= 32; lanes *= 2, ++folds) {
    const int64_t steps = ceil_div(rows * lanes, threads) * (ceil_div(cols, lanes) + 1 + folds);
    if (steps < fewest) best = lanes, fewest = steps;
  }
  return static_cast<int>(best);
}

}  // namespace gradus
