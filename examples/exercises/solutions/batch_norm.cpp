// dx = gamma·rstd·(dy - m1 - xhat·m2): gamma is one number for the set, so that m1 and m2 may be
// means of dy and dy·xhat.
#include "examples/exercises/exercise.h"

namespace exercises {

Gradients backward(const Input& in) {
  Gradients g(in);
  const double m = static_cast<double>(in.n * in.s);
  for (int64_t k = 0; k < in.c; ++k) {
    const size_t channel = static_cast<size_t>(k);
    const double mean = in.mean[channel], rstd = in.rstd[channel];
    for (int64_t i = 0; i < in.n; ++i) {
      for (int64_t j = 0; j < in.s; ++j) {
        const size_t at = in.at(i, k, j);
        g.dbeta[channel] += in.dy[at];
        g.dgamma[channel] += in.dy[at] * (in.x[at] - mean) * rstd;
      }
    }
    const double m1 = g.dbeta[channel] / m, m2 = g.dgamma[channel] / m;
    for (int64_t i = 0; i < in.n; ++i) {
      for (int64_t j = 0; j < in.s; ++j) {
        const size_t at = in.at(i, k, j);
        const double xhat = (in.x[at] - mean) * rstd;
        g.dx[at] = in.gamma[channel] * rstd * (in.dy[at] - m1 - xhat * m2);
      }
    }
  }
  return g;
}

}  // namespace exercises
