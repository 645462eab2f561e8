// As batch_norm, but the means run over one channel of one sample; dgamma and dbeta still are sums
// over all samples.
#include "examples/exercises/exercise.h"

namespace exercises {

Gradients backward(const Input& in) {
  Gradients g(in);
  const double m = static_cast<double>(in.s);
  for (int64_t i = 0; i < in.n; ++i) {
    for (int64_t k = 0; k < in.c; ++k) {
      const size_t set = static_cast<size_t>(i * in.c + k), channel = static_cast<size_t>(k);
      const double mean = in.mean[set], rstd = in.rstd[set];
      double sum = 0, sum_xhat = 0;
      for (int64_t j = 0; j < in.s; ++j) {
        const size_t at = in.at(i, k, j);
        sum += in.dy[at];
        sum_xhat += in.dy[at] * (in.x[at] - mean) * rstd;
      }
      g.dbeta[channel] += sum;
      g.dgamma[channel] += sum_xhat;
      for (int64_t j = 0; j < in.s; ++j) {
        const size_t at = in.at(i, k, j);
        const double xhat = (in.x[at] - mean) * rstd;
        g.dx[at] = in.gamma[channel] * rstd * (in.dy[at] - sum / m - xhat * sum_xhat / m);
      }
    }
  }
  return g;
}

}  // namespace exercises
