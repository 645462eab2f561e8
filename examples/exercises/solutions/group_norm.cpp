// dx = rstd·(d - m1 - xhat·m2) with d = dy·gamma: the means run over the set, with gamma inside;
// dgamma and dbeta are sums over all samples.
#include "examples/exercises/exercise.h"

namespace exercises {

Gradients backward(const Input& in) {
  Gradients g(in);
  const int64_t channels = in.c / in.groups;
  const double m = static_cast<double>(channels * in.s);
  for (int64_t i = 0; i < in.n; ++i) {
    for (int64_t group = 0; group < in.groups; ++group) {
      const size_t set = static_cast<size_t>(i * in.groups + group);
      const double mean = in.mean[set], rstd = in.rstd[set];
      const int64_t first = group * channels, last = first + channels;
      double m1 = 0, m2 = 0;
      for (int64_t k = first; k < last; ++k) {
        const size_t channel = static_cast<size_t>(k);
        for (int64_t j = 0; j < in.s; ++j) {
          const size_t at = in.at(i, k, j);
          const double xhat = (in.x[at] - mean) * rstd, d = in.dy[at] * in.gamma[channel];
          m1 += d / m;
          m2 += d * xhat / m;
          g.dgamma[channel] += in.dy[at] * xhat;
          g.dbeta[channel] += in.dy[at];
        }
      }
      for (int64_t k = first; k < last; ++k) {
        for (int64_t j = 0; j < in.s; ++j) {
          const size_t at = in.at(i, k, j);
          const double xhat = (in.x[at] - mean) * rstd;
          const double d = in.dy[at] * in.gamma[static_cast<size_t>(k)];
          g.dx[at] = rstd * (d - m1 - xhat * m2);
        }
      }
    }
  }
  return g;
}

}  // namespace exercises
