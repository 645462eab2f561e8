// Group, layer and RMS norm. In row-major order each set of all three is one run of m neighbours,
// so that only the place of an element's gamma tells them apart.
#include <cmath>
#include <functional>

#include "tests/support/reference_norm.h"

namespace gradus::ref {
namespace {

struct Sets {
  Shape stats;                                     // shape of mean and rstd
  Shape parameters;                                // shape of gamma and beta
  int64_t m = 1;                                   // values per set
  std::function<int64_t(int64_t)> parameter = {};  // flat index of x -> index of gamma

  int64_t count() const { return stats.numel(); }
};

Sets sets_of_groups(const Array& x, int64_t groups) {
  require(x.shape.rank() >= 2, "group_norm: x must be [n, c, ...]");
  const int64_t n = x.shape[0], c = x.shape[1];
  require(groups > 0 && c % groups == 0, "group_norm: groups must divide c");
  int64_t spatial = 1;
  for (int axis = 2; axis < x.shape.rank(); ++axis) spatial *= x.shape[axis];
  return {.stats = {n, groups},
          .parameters = {c},
          .m = c / groups * spatial,
          .parameter = [c, spatial](int64_t i) { return i / spatial % c; }};
}

Sets sets_of_rows(const Array& x, int normalized_axes) {
  require(normalized_axes >= 1 && normalized_axes <= x.shape.rank(),
          "layer_norm: 1 to rank of x trailing axes can be normalized");
  Sets sets;
  for (int axis = 0; axis < x.shape.rank(); ++axis) {
    const bool normalized = axis >= x.shape.rank() - normalized_axes;
    (normalized ? sets.parameters : sets.stats).append(x.shape[axis]);
    if (normalized) sets.m *= x.shape[axis];
  }
  sets.parameter = [m = sets.m](int64_t i) { return i % m; };
  return sets;
}

Real value_or(const Array& parameter, int64_t i, Real otherwise) {
  return parameter.empty() ? otherwise : Real(parameter[i]);
}

Real mean_of(const Array& x, int64_t begin, int64_t m) {
  Real total = 0;
  for (int64_t i = begin; i < begin + m; ++i) total += x[i];
  return m == 0 ? 0 : total / m;
}

// The mean of (x - centre)^2.
Real spread_of(const Array& x, int64_t begin, int64_t m, Real centre) {
  Real total = 0;
  for (int64_t i = begin; i < begin + m; ++i) total += (x[i] - centre) * (x[i] - centre);
  return m == 0 ? 0 : total / m;
}

// centred: subtract the mean (group, layer), or not (RMS).
NormForward forward(const Array& x, const Sets& sets, bool centred, const Array& gamma,
                    const Array& beta, double eps) {
  require(gamma.empty() || gamma.shape == sets.parameters, "norm: wrong shape of gamma");
  require(beta.empty() || beta.shape == sets.parameters, "norm: wrong shape of beta");
  NormForward out{zeros(x.shape), centred ? zeros(sets.stats) : Array{}, zeros(sets.stats)};
  for (int64_t set = 0; set < sets.count(); ++set) {
    const int64_t begin = set * sets.m;
    const Real mean = centred ? mean_of(x, begin, sets.m) : Real(0);
    const Real std = std::sqrt(spread_of(x, begin, sets.m, mean) + Real(eps));
    for (int64_t i = begin; i < begin + sets.m; ++i) {
      const int64_t p = sets.parameter(i);
      const Real xhat = (x[i] - mean) / std;
      out.y[i] = static_cast<double>(xhat * value_or(gamma, p, 1) + value_or(beta, p, 0));
    }
    if (centred) out.mean[set] = static_cast<double>(mean);
    out.rstd[set] = static_cast<double>(1 / std);
  }
  return out;
}

NormGradients backward(const Array& x, const Sets& sets, bool centred, const Array& gamma,
                       const Array& dy, double eps) {
  require(dy.shape == x.shape, "norm: dy must have the shape of x");
  Sums dgamma(sets.parameters), dbeta(sets.parameters);
  NormGradients out{zeros(x.shape), {}, {}};
  for (int64_t set = 0; set < sets.count(); ++set) {
    const int64_t begin = set * sets.m, end = begin + sets.m;
    const Real mean = centred ? mean_of(x, begin, sets.m) : Real(0);
    const Real var = spread_of(x, begin, sets.m, mean);
    const Real std = std::sqrt(var + Real(eps));

    // y = gamma * xhat + beta
    for (int64_t i = begin; i < end; ++i) {
      dgamma[sets.parameter(i)] += dy[i] * (x[i] - mean) / std;
      dbeta[sets.parameter(i)] += dy[i];
    }
    // xhat = (x - mean) * (var + eps)^-1/2
    Real dvar = 0, dmean = 0;
    for (int64_t i = begin; i < end; ++i) {
      const Real dxhat = dy[i] * value_or(gamma, sets.parameter(i), 1);
      dvar += dxhat * (x[i] - mean) * Real(-0.5) / (std * std * std);
      dmean += -dxhat / std;
    }
    // var = sum (x - mean)^2 / m; its own path to mean, sum of -2 (x - mean) / m, is 0
    for (int64_t i = begin; i < end; ++i) {
      const Real dxhat = dy[i] * value_or(gamma, sets.parameter(i), 1);
      const Real through_xhat = dxhat / std;
      const Real through_var = dvar * 2 * (x[i] - mean) / sets.m;
      const Real through_mean = centred ? dmean / sets.m : Real(0);
      out.dx[i] = static_cast<double>(through_xhat + through_var + through_mean);
    }
  }
  out.dgamma = dgamma.rounded();
  if (centred) out.dbeta = dbeta.rounded();
  return out;
}

}  // namespace

NormForward group_norm(const Array& x, int64_t groups, const Array& gamma, const Array& beta,
                       double eps) {
  return forward(x, sets_of_groups(x, groups), true, gamma, beta, eps);
}

NormGradients group_norm_backward(const Array& x, int64_t groups, const Array& gamma,
                                  const Array& dy, double eps) {
  return backward(x, sets_of_groups(x, groups), true, gamma, dy, eps);
}

NormForward layer_norm(const Array& x, int normalized_axes, const Array& gamma, const Array& beta,
                       double eps) {
  return forward(x, sets_of_rows(x, normalized_axes), true, gamma, beta, eps);
}

NormGradients layer_norm_backward(const Array& x, int normalized_axes, const Array& gamma,
                                  const Array& dy, double eps) {
  return backward(x, sets_of_rows(x, normalized_axes), true, gamma, dy, eps);
}

NormForward rms_norm(const Array& x, int normalized_axes, const Array& gamma, double eps) {
  return forward(x, sets_of_rows(x, normalized_axes), false, gamma, {}, eps);
}

NormGradients rms_norm_backward(const Array& x, int normalized_axes, const Array& gamma,
                                const Array& dy, double eps) {
  return backward(x, sets_of_rows(x, normalized_axes), false, gamma, dy, eps);
}

}  // namespace gradus::ref
