#include "tests/support/reference_reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/reference_broadcast.h"

namespace gradus::ref {
namespace {

// `shape` with extent 1 along the reduced axes.
Shape kept(const Shape& shape, const std::vector<int>& axes) {
  if (axes.empty()) return Shape::filled(shape.rank(), 1);
  Shape result = shape;
  for (const int axis : axes) {
    const int from_front = axis < 0 ? axis + shape.rank() : axis;
    require(from_front >= 0 && from_front < shape.rank(), "reduce: axis outside the rank");
    result[from_front] = 1;
  }
  return result;
}

Shape dropped(const Shape& shape, const std::vector<int>& axes) {
  Shape result;
  for (int i = 0; i < shape.rank(); ++i) {
    bool reduced = axes.empty();
    for (const int axis : axes) reduced |= i == (axis < 0 ? axis + shape.rank() : axis);
    if (!reduced) result.append(shape[i]);
  }
  return result;
}

// Values per result.
Real count(const Shape& shape, const std::vector<int>& axes) {
  const Shape small = kept(shape, axes);
  Real product = 1;
  for (int i = 0; i < shape.rank(); ++i) {
    if (small[i] == 1) product *= shape[i];
  }
  return product;
}

Array reduce(const Array& x, const std::vector<int>& axes, bool keepdim, Real divisor) {
  const Shape small = kept(x.shape, axes);
  Sums y(small);
  for (int64_t i = 0; i < x.numel(); ++i) y[broadcast_index(i, x.shape, small)] += x[i];
  for (Real& value : y.data) value /= divisor;
  if (!keepdim) y.shape = dropped(x.shape, axes);
  return y.rounded();
}

Array spread(const Shape& shape, const Array& dy, const std::vector<int>& axes, Real divisor) {
  const Shape small = kept(shape, axes);
  require(dy.numel() == small.numel(), "reduce: dy must have the shape of y");
  Array dx = zeros(shape);
  for (int64_t i = 0; i < dx.numel(); ++i) {
    dx[i] = static_cast<double>(dy[broadcast_index(i, shape, small)] / divisor);
  }
  return dx;
}

using Set = std::vector<int64_t>;  // flat indices of x that make one result
constexpr Real kNan = std::numeric_limits<Real>::quiet_NaN();

std::vector<Set> sets_of(const Shape& shape, const std::vector<int>& axes) {
  const Shape small = kept(shape, axes);
  std::vector<Set> sets(static_cast<size_t>(small.numel()));
  for (int64_t i = 0; i < shape.numel(); ++i) {
    sets[static_cast<size_t>(broadcast_index(i, shape, small))].push_back(i);
  }
  return sets;
}

// f(set) -> Real for every result.
template <class F>
Array each_set(const Array& x, const std::vector<int>& axes, bool keepdim, F f) {
  Array y{keepdim ? kept(x.shape, axes) : dropped(x.shape, axes), {}};
  for (const Set& set : sets_of(x.shape, axes)) y.data.push_back(static_cast<double>(f(set)));
  return y;
}

// f(set, dy) -> a Real per value of the set: what dx gets.
template <class F>
Array each_gradient(const Array& x, const Array& dy, const std::vector<int>& axes, F f) {
  const std::vector<Set> sets = sets_of(x.shape, axes);
  require(dy.numel() == static_cast<int64_t>(sets.size()), "reduce: dy must have the shape of y");
  Array dx = zeros(x.shape);
  for (size_t k = 0; k < sets.size(); ++k) {
    const std::vector<Real> shares = f(sets[k], Real(dy.data[k]));
    for (size_t j = 0; j < sets[k].size(); ++j) dx[sets[k][j]] = static_cast<double>(shares[j]);
  }
  return dx;
}

// sign = 1 for max, -1 for min.
Real extreme(const Array& x, const Set& set, int sign) {
  require(!set.empty(), "max, min: no values to choose from");
  Real best = x[set[0]];
  for (const int64_t i : set) {
    if (std::isnan(x[i])) return kNan;
    if (sign * x[i] > sign * best) best = x[i];
  }
  return best;
}

Array extreme_backward(const Array& x, const Array& dy, const std::vector<int>& axes, int sign) {
  return each_gradient(x, dy, axes, [&](const Set& set, Real d) {
    std::vector<Real> shares(set.size());
    if (set.empty()) return shares;
    const Real best = extreme(x, set, sign);
    const auto wins = [&](int64_t i) { return std::isnan(best) ? std::isnan(x[i]) : x[i] == best; };
    int64_t winners = 0;
    for (const int64_t i : set) winners += wins(i) ? 1 : 0;
    for (size_t j = 0; j < set.size(); ++j) shares[j] = wins(set[j]) ? d / winners : Real(0);
    return shares;
  });
}

Real norm_of(const Array& x, const Set& set) {
  Real total = 0;
  for (const int64_t i : set) total += Real(x[i]) * x[i];
  return std::sqrt(total);
}

Real log_sum_exp(const Array& x, const Set& set) {
  if (set.empty()) return -std::numeric_limits<Real>::infinity();
  Real largest = extreme(x, set, 1);
  if (std::isinf(largest)) largest = 0;  // inf - inf would hide the answer, which is inf too
  Real total = 0;
  for (const int64_t i : set) total += std::exp(x[i] - largest);
  return largest + std::log(total);
}

struct Deviations {
  std::vector<Real> centred;
  Real divisor = 0, var = kNan;

  Deviations(const Array& x, const Set& set, double correction) {
    const Real m = static_cast<Real>(set.size());
    divisor = std::max(Real(0), m - Real(correction));
    if (set.empty()) return;
    Real mean = 0;
    for (const int64_t i : set) mean += x[i];
    mean /= m;
    var = 0;
    for (const int64_t i : set) {
      centred.push_back(x[i] - mean);
      var += centred.back() * centred.back();
    }
    var /= divisor;
  }

  // From the gradient of var; var = sum centred^2 / divisor, centred = x - sum x / m.
  std::vector<Real> backward(Real dvar) const {
    std::vector<Real> dx;
    Real dmean = 0;
    for (const Real c : centred) {
      dx.push_back(dvar * 2 * c / divisor);
      dmean -= dx.back();
    }
    for (Real& value : dx) value += divisor > 0 ? dmean / static_cast<Real>(dx.size()) : Real(0);
    return dx;
  }
};

}  // namespace

Array sum(const Array& x, const std::vector<int>& axes, bool keepdim) {
  return reduce(x, axes, keepdim, 1);
}

Array mean(const Array& x, const std::vector<int>& axes, bool keepdim) {
  return reduce(x, axes, keepdim, count(x.shape, axes));
}

Array sum_backward(const Shape& shape, const Array& dy, const std::vector<int>& axes) {
  return spread(shape, dy, axes, 1);
}

Array mean_backward(const Shape& shape, const Array& dy, const std::vector<int>& axes) {
  return spread(shape, dy, axes, count(shape, axes));
}

Array max(const Array& x, const std::vector<int>& axes, bool keepdim) {
  return each_set(x, axes, keepdim, [&](const Set& set) { return extreme(x, set, 1); });
}

Array min(const Array& x, const std::vector<int>& axes, bool keepdim) {
  return each_set(x, axes, keepdim, [&](const Set& set) { return extreme(x, set, -1); });
}

Array max_backward(const Array& x, const Array& dy, const std::vector<int>& axes) {
  return extreme_backward(x, dy, axes, 1);
}

Array min_backward(const Array& x, const Array& dy, const std::vector<int>& axes) {
  return extreme_backward(x, dy, axes, -1);
}

Array prod(const Array& x, const std::vector<int>& axes, bool keepdim) {
  return each_set(x, axes, keepdim, [&](const Set& set) {
    Real product = 1;
    for (const int64_t i : set) product *= x[i];
    return product;
  });
}

Array prod_backward(const Array& x, const Array& dy, const std::vector<int>& axes) {
  return each_gradient(x, dy, axes, [&](const Set& set, Real d) {
    // The product of all others is that of the ones before and the ones behind: no division.
    std::vector<Real> shares(set.size(), d);
    Real before = 1, behind = 1;
    for (size_t j = 0; j < set.size(); ++j) {
      shares[j] *= before;
      before *= x[set[j]];
    }
    for (size_t j = set.size(); j-- > 0;) {
      shares[j] *= behind;
      behind *= x[set[j]];
    }
    return shares;
  });
}

Array norm2(const Array& x, const std::vector<int>& axes, bool keepdim) {
  return each_set(x, axes, keepdim, [&](const Set& set) { return norm_of(x, set); });
}

Array norm2_backward(const Array& x, const Array& dy, const std::vector<int>& axes) {
  return each_gradient(x, dy, axes, [&](const Set& set, Real d) {
    const Real norm = norm_of(x, set);
    std::vector<Real> shares;
    // norm = sqrt(s), s = sum x^2: ds = d / (2 norm), dx = ds * 2x
    for (const int64_t i : set) shares.push_back(norm == 0 ? Real(0) : d / (2 * norm) * 2 * x[i]);
    return shares;
  });
}

Array logsumexp(const Array& x, const std::vector<int>& axes, bool keepdim) {
  return each_set(x, axes, keepdim, [&](const Set& set) { return log_sum_exp(x, set); });
}

Array logsumexp_backward(const Array& x, const Array& dy, const std::vector<int>& axes) {
  return each_gradient(x, dy, axes, [&](const Set& set, Real d) {
    const Real y = log_sum_exp(x, set);
    std::vector<Real> shares;
    for (const int64_t i : set) shares.push_back(d * std::exp(x[i] - y));
    return shares;
  });
}

Array var(const Array& x, const std::vector<int>& axes, double correction, bool keepdim) {
  return each_set(x, axes, keepdim,
                  [&](const Set& set) { return Deviations(x, set, correction).var; });
}

Array var_backward(const Array& x, const Array& dy, const std::vector<int>& axes,
                   double correction) {
  return each_gradient(x, dy, axes, [&](const Set& set, Real d) {
    return Deviations(x, set, correction).backward(d);
  });
}

Array std_(const Array& x, const std::vector<int>& axes, double correction, bool keepdim) {
  return each_set(x, axes, keepdim,
                  [&](const Set& set) { return std::sqrt(Deviations(x, set, correction).var); });
}

Array std_backward(const Array& x, const Array& dy, const std::vector<int>& axes,
                   double correction) {
  return each_gradient(x, dy, axes, [&](const Set& set, Real d) {
    const Deviations deviations(x, set, correction);
    const Real std = std::sqrt(deviations.var);
    return deviations.backward(std == 0 ? Real(0) : d / (2 * std));
  });
}

}  // namespace gradus::ref
