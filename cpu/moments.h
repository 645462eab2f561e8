// Count, mean and M2 = Σ (x - mean)² of part of a set, and their merging by Chan's formula.
// Source: Chan, Golub and LeVeque 1983, https://doi.org/10.1080/00031305.1983.10483115.
#pragma once

#include <cmath>
#include <limits>

#include "cpu/lanes.h"

namespace gradus::GRADUS_ISA {

// Merged in f64 whatever the elements are: there are few merges and many elements.
struct Moments {
  double count = 0;
  double mean = 0;
  double m2 = 0;

  void merge(const Moments& b) {
    if (b.count == 0) return;
    const double total = count + b.count;
    const double delta = b.mean - mean;
    mean += delta * (b.count / total);
    m2 += b.m2;
    // Of a first part delta is its mean, whose square may overflow beside a small variance.
    if (count > 0) m2 += delta * delta * (count * b.count / total);
    count = total;
  }
};

// rstd in A. A variance that A cannot hold counts as infinite: 0. NaN stays.
template <class A>
A rstd_of(double var, double eps) {
  return var > std::numeric_limits<A>::max() ? A(0) : static_cast<A>(1.0 / std::sqrt(var + eps));
}

// Of `count` neighbouring elements, in two passes; count is small enough to stay in the first
// cache. The residual Σ (x - mean) corrects the rounding of the first pass.
template <class T>
Moments moments_of(const T* x, int64_t count) {
  using A = acc_t<T>;
  Lanes<A> sums[4] = {};
  for_each_lanes<A>(count, [&](int64_t i, auto lanes, int k) { sums[k] += load(x + i, lanes); });
  const A mean = sum_lanes<A>((sums[0] + sums[1]) + (sums[2] + sums[3])) / static_cast<A>(count);
  Lanes<A> residuals[4] = {}, squares[4] = {};
  for_each_lanes<A>(count, [&](int64_t i, auto lanes, int k) {
    const Lanes<A> d = keep<A>(load(x + i, lanes) - mean, lanes);
    residuals[k] += d;
    squares[k] += d * d;
  });
  const double residual =
      sum_lanes<A>((residuals[0] + residuals[1]) + (residuals[2] + residuals[3]));
  const double square = sum_lanes<A>((squares[0] + squares[1]) + (squares[2] + squares[3]));
  const double n = static_cast<double>(count);
  return {n, static_cast<double>(mean) + residual / n, square - residual * (residual / n)};
}

}  // namespace gradus::GRADUS_ISA
