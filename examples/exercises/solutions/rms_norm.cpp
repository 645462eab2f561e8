// dx = rstd·(d - xhat·m2): without a mean in the forward there is no m1.
#include "examples/exercises/exercise.h"

namespace exercises {

Gradients backward(const Input& in) {
  Gradients g(in);
  const double m = static_cast<double>(in.c);
  for (int64_t i = 0; i < in.n; ++i) {
    const double rstd = in.rstd[static_cast<size_t>(i)];
    double m2 = 0;
    for (int64_t k = 0; k < in.c; ++k) {
      const size_t at = in.at(i, k, 0), feature = static_cast<size_t>(k);
      const double xhat = in.x[at] * rstd;
      m2 += in.dy[at] * in.gamma[feature] * xhat / m;
      g.dgamma[feature] += in.dy[at] * xhat;
    }
    for (int64_t k = 0; k < in.c; ++k) {
      const size_t at = in.at(i, k, 0);
      g.dx[at] = rstd * (in.dy[at] * in.gamma[static_cast<size_t>(k)] - in.x[at] * rstd * m2);
    }
  }
  return g;
}

}  // namespace exercises
