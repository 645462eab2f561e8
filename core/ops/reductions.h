// The formulas of the reductions: max, min, prod, norm2, logsumexp, var, std. Each is one struct,
// shared by both backends; adding one takes the struct, its entry in `reductions::All` and a
// function in autograd/ops/reduce.h. sum and mean: core/ops/sum.h.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

#include "core/dtype.h"
#include "core/ops/partial.h"

namespace gradus {

// What a struct says, for a value type V (float, double, or a vector of them: one set per lane):
//   name          as users write it
//   kFields       numbers that describe part of a set
//   kOfCount      so many of them, the first, follow from the number of elements (0 if not given)
//   kStat0, kStat1  whether the gradient needs a first and a second statistic beside x
//   kStat0IsY     the first statistic is y, in acc_dtype
//   kExactY       y is one of the elements, so that its storage dtype serves as well
//   identity      describes no elements
//   of            describes U elements
//   merge         describes two parts together
//   join          describes U parts of as many elements each (if not given, merge serves)
//   finish        y and the statistics; the parameter is the divisor of var and std
//   Terms, terms  what the gradients of one set share, from dy and the statistics
//   dx            the gradient of an element
// Math has exp, exp_term (an addend of a sum; may be less exact), exp_terms (of s: the function
// that takes x to exp_term(x - s)), log, sqrt, larger and smaller (NaN if either is), ratio(a, b)
// and share(part, whole) of two counts (may be less exact).
namespace reductions {

template <class V>
GRADUS_HD auto same(V x, V extremum) {
  // A NaN in the set makes the extremum NaN: then NaNs equal it, and nothing else does.
  return (x == extremum) | (x != x);
}

// y = max x or min x; NaN if any x is.
// dx = dy / (number of elements that equal y) for those, else 0; NaN counts as equal to NaN.
template <bool kLargest>
struct Extremum {
  static constexpr int kFields = 2;
  enum Field { kBest, kCount };
  static constexpr bool kStat0 = true, kStat1 = true, kStat0IsY = true, kExactY = true;

  template <class Math, class V>
  GRADUS_HD static V better(V a, V b) {
    if constexpr (kLargest) {
      return Math::larger(a, b);
    } else {
      return Math::smaller(a, b);
    }
  }
  template <class V>
  GRADUS_HD static Partial<V, 2> identity() {
    constexpr double worst = std::numeric_limits<double>::infinity();
    return {constant<V>(kLargest ? -worst : worst), V{}};
  }
  template <class Math, class V, int U>
  GRADUS_HD static Partial<V, 2> of(const V (&x)[U]) {
    V best = x[0];
    GRADUS_UNROLL
    for (int i = 1; i < U; ++i) best = better<Math>(best, x[i]);
    const V one = constant<V>(1), zero = V{};
    V count = zero;
    GRADUS_UNROLL
    for (int i = 0; i < U; ++i) count += same(x[i], best) ? one : zero;
    return {best, count};
  }
  template <class Math, class V>
  GRADUS_HD static Partial<V, 2> merge(const Partial<V, 2>& a, const Partial<V, 2>& b) {
    const V best = better<Math>(a.v[kBest], b.v[kBest]), zero = V{};
    return {best, (same(a.v[kBest], best) ? a.v[kCount] : zero) +
                      (same(b.v[kBest], best) ? b.v[kCount] : zero)};
  }
  template <class Math, class A>
  GRADUS_HD static Reduced<A> finish(const Partial<A, 2>& part, double) {
    return {part.v[kBest], part.v[kBest], part.v[kCount]};
  }

  template <class V>
  struct Terms {
    V best, share;
  };
  template <class Math, class V>
  GRADUS_HD static Terms<V> terms(V dy, V y, V count, double) {
    return {y, dy / count};
  }
  template <class Math, class V>
  GRADUS_HD static V dx(V x, const Terms<V>& t) {
    const V zero = V{};
    return same(x, t.best) ? t.share : zero;
  }
};

struct Max : Extremum<true> {
  static constexpr std::string_view name = "max";
};
struct Min : Extremum<false> {
  static constexpr std::string_view name = "min";
};

// y = Π x, as the product p of the x other than 0, times 0 if there are z > 0 of them.
// dx = dy · Π of the others: dy · (p / x) for z = 0, dy · p at the 0 for z = 1, else 0.
struct Prod {
  static constexpr std::string_view name = "prod";
  static constexpr int kFields = 2;
  enum Field { kProduct, kZeros };
  static constexpr bool kStat0 = true, kStat1 = true, kStat0IsY = false, kExactY = false;

  template <class V>
  GRADUS_HD static Partial<V, 2> identity() {
    return {constant<V>(1), V{}};
  }
  template <class Math, class V, int U>
  GRADUS_HD static Partial<V, 2> of(const V (&x)[U]) {
    const V one = constant<V>(1), zero = V{};
    V factors[U], zeros[U];
    GRADUS_UNROLL
    for (int i = 0; i < U; ++i) {
      factors[i] = x[i] == zero ? one : x[i];
      zeros[i] = x[i] == zero ? one : zero;
    }
    return {fold_product(factors), fold_sum(zeros)};
  }
  template <class Math, class V>
  GRADUS_HD static Partial<V, 2> merge(const Partial<V, 2>& a, const Partial<V, 2>& b) {
    return {a.v[kProduct] * b.v[kProduct], a.v[kZeros] + b.v[kZeros]};
  }
  template <class Math, class A>
  GRADUS_HD static Reduced<A> finish(const Partial<A, 2>& part, double) {
    const A p = part.v[kProduct], z = part.v[kZeros];
    return {z > A(0) ? p * A(0) : p, p, z};
  }

  template <class V>
  struct Terms {
    V dy, product, zeros;
  };
  template <class Math, class V>
  GRADUS_HD static Terms<V> terms(V dy, V product, V zeros, double) {
    return {dy, product, zeros};
  }
  template <class Math, class V>
  GRADUS_HD static V dx(V x, const Terms<V>& t) {
    const V one = constant<V>(1), zero = V{};
    const V others = t.dy * (t.product / x), at_zero = t.dy * t.product;
    const V with_zeros = ((t.zeros == one) & (x == zero)) ? at_zero : zero;
    return t.zeros == zero ? others : with_zeros;
  }
};

// y = √(Σ x²); dx = dy · x / y, and 0 for y = 0.
struct Norm2 {
  static constexpr std::string_view name = "norm2";
  static constexpr int kFields = 1;
  static constexpr bool kStat0 = true, kStat1 = false, kStat0IsY = true, kExactY = false;

  template <class V>
  GRADUS_HD static Partial<V, 1> identity() {
    return {V{}};
  }
  template <class Math, class V, int U>
  GRADUS_HD static Partial<V, 1> of(const V (&x)[U]) {
    V squares[U];
    GRADUS_UNROLL
    for (int i = 0; i < U; ++i) squares[i] = x[i] * x[i];
    return {fold_sum(squares)};
  }
  template <class Math, class V>
  GRADUS_HD static Partial<V, 1> merge(const Partial<V, 1>& a, const Partial<V, 1>& b) {
    return {a.v[0] + b.v[0]};
  }
  template <class Math, class A>
  GRADUS_HD static Reduced<A> finish(const Partial<A, 1>& part, double) {
    const A y = Math::sqrt(part.v[0]);
    return {y, y};
  }

  template <class V>
  struct Terms {
    V scale;
  };
  template <class Math, class V>
  GRADUS_HD static Terms<V> terms(V dy, V y, V, double) {
    const V zero = V{};
    return {y == zero ? zero : Math::ratio(dy, y)};
  }
  template <class Math, class V>
  GRADUS_HD static V dx(V x, const Terms<V>& t) {
    return x * t.scale;
  }
};

// y = s + log Σ exp(x - s) with s = max x where that is finite, else 0: -inf if all x are -inf, inf
// if any x is inf.
// dx = dy · exp(x - y), and 0 for y = -inf.
struct LogSumExp {
  static constexpr std::string_view name = "logsumexp";
  static constexpr int kFields = 2;
  enum Field { kMax, kSum };
  static constexpr bool kStat0 = true, kStat1 = false, kStat0IsY = true, kExactY = false;

  template <class V>
  GRADUS_HD static V shift(V max) {
    const V zero = V{};
    return max - max == zero ? max : zero;  // inf - inf and NaN are not 0
  }
  template <class V>
  GRADUS_HD static Partial<V, 2> identity() {
    return {constant<V>(-std::numeric_limits<double>::infinity()), V{}};
  }
  template <class Math, class V, int U>
  GRADUS_HD static Partial<V, 2> of(const V (&x)[U]) {
    V max = x[0];
    GRADUS_UNROLL
    for (int i = 1; i < U; ++i) max = Math::larger(max, x[i]);
    const auto exp_of = Math::exp_terms(shift(max));
    V terms[U];
    GRADUS_UNROLL
    for (int i = 0; i < U; ++i) terms[i] = exp_of(x[i]);
    return {max, fold_sum(terms)};
  }
  // One exponential: the larger maximum's sum keeps its scale. Equal infinities count as equal.
  template <class Math, class V>
  GRADUS_HD static Partial<V, 2> merge(const Partial<V, 2>& a, const Partial<V, 2>& b) {
    const V x = a.v[kMax], y = b.v[kMax], zero = V{};
    const V down = x > y ? y - x : x - y;
    const V factor = Math::exp_term(x == y ? zero : down);
    const V left = x > y ? a.v[kSum] : a.v[kSum] * factor;
    const V right = x > y ? b.v[kSum] * factor : b.v[kSum];
    return {Math::larger(x, y), left + right};
  }
  template <class Math, class V, int U>
  GRADUS_HD static Partial<V, 2> join(const Partial<V, 2> (&parts)[U]) {
    V max = parts[0].v[kMax];
    GRADUS_UNROLL
    for (int i = 1; i < U; ++i) max = Math::larger(max, parts[i].v[kMax]);
    const V s = shift(max);
    V sums[U];
    GRADUS_UNROLL
    for (int i = 0; i < U; ++i) sums[i] = parts[i].v[kSum] * Math::exp_term(parts[i].v[kMax] - s);
    return {max, fold_sum(sums)};
  }
  template <class Math, class A>
  GRADUS_HD static Reduced<A> finish(const Partial<A, 2>& part, double) {
    const A y = shift(part.v[kMax]) + Math::log(part.v[kSum]);
    return {y, y};
  }

  template <class V>
  struct Terms {
    V dy, y;
  };
  template <class Math, class V>
  GRADUS_HD static Terms<V> terms(V dy, V y, V, double) {
    const V zero = V{}, lowest = constant<V>(-std::numeric_limits<double>::infinity());
    return {y == lowest ? zero : dy, y == lowest ? zero : y};
  }
  template <class Math, class V>
  GRADUS_HD static V dx(V x, const Terms<V>& t) {
    return t.dy * Math::exp(x - t.y);
  }
};

// Count, mean and m2 = Σ (x - mean)² of part of a set: two passes over a few values in registers,
// merged by Chan, Golub and LeVeque's formula (https://doi.org/10.1080/00031305.1983.10483115).
struct Moments {
  static constexpr int kFields = 3;
  static constexpr int kOfCount = 1;
  enum Field { kCount, kMean, kM2 };

  template <class V>
  GRADUS_HD static Partial<V, 3> identity() {
    return {V{}, V{}, V{}};
  }
  template <class Math, class V, int U>
  GRADUS_HD static Partial<V, 3> of(const V (&x)[U]) {
    const V mean = fold_sum(x) * constant<V>(1.0 / U);
    V squares[U];
    GRADUS_UNROLL
    for (int i = 0; i < U; ++i) squares[i] = (x[i] - mean) * (x[i] - mean);
    return {constant<V>(U), mean, fold_sum(squares)};
  }
  template <class Math, class V>
  GRADUS_HD static Partial<V, 3> merge(const Partial<V, 3>& a, const Partial<V, 3>& b) {
    const V one = constant<V>(1), zero = V{};
    const V count = a.v[kCount] + b.v[kCount];
    const V share = Math::share(b.v[kCount], count == zero ? one : count);
    const V delta = b.v[kMean] - a.v[kMean];
    return {count, a.v[kMean] + delta * share,
            a.v[kM2] + b.v[kM2] + delta * (delta * (a.v[kCount] * share))};
  }
  // Of equal counts: the mean of the means, and their deviations from it in two passes.
  template <class Math, class V, int U>
  GRADUS_HD static Partial<V, 3> join(const Partial<V, 3> (&parts)[U]) {
    V means[U], m2s[U], squares[U];
    GRADUS_UNROLL
    for (int i = 0; i < U; ++i) {
      means[i] = parts[i].v[kMean];
      m2s[i] = parts[i].v[kM2];
    }
    const V count = parts[0].v[kCount], mean = fold_sum(means) * constant<V>(1.0 / U);
    GRADUS_UNROLL
    for (int i = 0; i < U; ++i) squares[i] = (means[i] - mean) * (means[i] - mean);
    return {count * constant<V>(U), mean, fold_sum(m2s) + count * fold_sum(squares)};
  }
};

// y = Σ (x - mean)² / divisor, with divisor = max(0, m - correction): NaN or inf where that is 0.
// dx = dy · 2 (x - mean) / divisor.
struct Var : Moments {
  static constexpr std::string_view name = "var";
  static constexpr bool kStat0 = true, kStat1 = false, kStat0IsY = false, kExactY = false;

  template <class Math, class A>
  GRADUS_HD static Reduced<A> finish(const Partial<A, 3>& part, double divisor) {
    return {part.v[kM2] / static_cast<A>(divisor), part.v[kMean]};
  }

  template <class V>
  struct Terms {
    V mean, scale;
  };
  template <class Math, class V>
  GRADUS_HD static Terms<V> terms(V dy, V mean, V, double divisor) {
    return {mean, dy * (constant<V>(2) / constant<V>(divisor))};
  }
  template <class Math, class V>
  GRADUS_HD static V dx(V x, const Terms<V>& t) {
    return (x - t.mean) * t.scale;
  }
};

// y = √var; dx = dy · (x - mean) / (y · divisor), and 0 for y = 0.
struct Std : Moments {
  static constexpr std::string_view name = "std";
  static constexpr bool kStat0 = true, kStat1 = true, kStat0IsY = true, kExactY = false;

  template <class Math, class A>
  GRADUS_HD static Reduced<A> finish(const Partial<A, 3>& part, double divisor) {
    const A y = Math::sqrt(part.v[kM2] / static_cast<A>(divisor));
    return {y, y, part.v[kMean]};
  }

  template <class V>
  struct Terms {
    V mean, scale;
  };
  template <class Math, class V>
  GRADUS_HD static Terms<V> terms(V dy, V y, V mean, double divisor) {
    const V zero = V{};
    return {mean, y == zero ? zero : dy / (y * constant<V>(divisor))};
  }
  template <class Math, class V>
  GRADUS_HD static V dx(V x, const Terms<V>& t) {
    return (x - t.mean) * t.scale;
  }
};

using All = TypeList<Max, Min, Prod, Norm2, LogSumExp, Var, Std>;

}  // namespace reductions

}  // namespace gradus
