// dx = y·(dy - Σ dy·y), the sum over the channels at the position.
#include "examples/exercises/exercise.h"

namespace exercises {

Gradients backward(const Input& in) {
  Gradients g(in);
  for (int64_t i = 0; i < in.n; ++i) {
    for (int64_t j = 0; j < in.s; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < in.c; ++k) sum += in.dy[in.at(i, k, j)] * in.y[in.at(i, k, j)];
      for (int64_t k = 0; k < in.c; ++k) {
        const size_t at = in.at(i, k, j);
        g.dx[at] = in.y[at] * (in.dy[at] - sum);
      }
    }
  }
  return g;
}

}  // namespace exercises
