// dx = rstd·(d - m1 - xhat·m2) with d = dy·gamma, over each row.
#include "examples/exercises/exercise.h"

namespace exercises {

Gradients backward(const Input& in) {
  Gradients g(in);
  const double m = static_cast<double>(in.c);
  for (int64_t i = 0; i < in.n; ++i) {
    const double mean = in.mean[static_cast<size_t>(i)], rstd = in.rstd[static_cast<size_t>(i)];
    double m1 = 0, m2 = 0;
    for (int64_t k = 0; k < in.c; ++k) {
      const size_t at = in.at(i, k, 0), feature = static_cast<size_t>(k);
      const double xhat = (in.x[at] - mean) * rstd, d = in.dy[at] * in.gamma[feature];
      m1 += d / m;
      m2 += d * xhat / m;
      g.dgamma[feature] += in.dy[at] * xhat;
      g.dbeta[feature] += in.dy[at];
    }
    for (int64_t k = 0; k < in.c; ++k) {
      const size_t at = in.at(i, k, 0);
      const double xhat = (in.x[at] - mean) * rstd;
      g.dx[at] = rstd * (in.dy[at] * in.gamma[static_cast<size_t>(k)] - m1 - xhat * m2);
    }
  }
  return g;
}

}  // namespace exercises
