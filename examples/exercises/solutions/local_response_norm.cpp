// dx = dy·denom^-beta - 2·beta·alpha/size·x·Σ dy·x·denom^(-beta - 1), the sum over the channels
// whose windows hold this one: the window turned over.
#include <algorithm>
#include <cmath>

#include "examples/exercises/exercise.h"

namespace exercises {

Gradients backward(const Input& in) {
  Gradients g(in);
  const int64_t below = in.size / 2, above = (in.size - 1) / 2;
  const double scale = in.alpha / static_cast<double>(in.size);
  for (int64_t i = 0; i < in.n; ++i) {
    for (int64_t j = 0; j < in.s; ++j) {
      const auto over = [&](int64_t first, int64_t last, auto&& term) {
        double sum = 0;
        for (int64_t k = std::max<int64_t>(first, 0); k <= std::min(last, in.c - 1); ++k)
          sum += term(k);
        return sum;
      };
      Values denom;
      for (int64_t k = 0; k < in.c; ++k) {
        denom.push_back(in.k + scale * over(k - below, k + above, [&](int64_t near) {
                                 const double x = in.x[in.at(i, near, j)];
                                 return x * x;
                               }));
      }
      for (int64_t k = 0; k < in.c; ++k) {
        const double sum = over(k - above, k + below, [&](int64_t near) {
          const size_t at = in.at(i, near, j);
          return in.dy[at] * in.x[at] * std::pow(denom[static_cast<size_t>(near)], -in.beta - 1);
        });
        const size_t at = in.at(i, k, j);
        g.dx[at] = in.dy[at] * std::pow(denom[static_cast<size_t>(k)], -in.beta) -
                   2 * in.beta * scale * in.x[at] * sum;
      }
    }
  }
  return g;
}

}  // namespace exercises
