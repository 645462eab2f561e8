// Variants of the reductions' gradients that are wrong in one way, made from the structs that the
// kernels use: the comparison that the kernels pass must refuse each, and accept the struct itself.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "core/ops/reductions.h"
#include "tests/support/compare.h"
#include "tests/support/op_modes.h"

namespace gradus {
namespace {

using Axes = std::vector<int>;
using Gradient = std::function<ref::Array(const ref::Array&, const ref::Array& dy, const Axes&)>;

struct HostMath {
  static double exp(double x) { return std::exp(x); }
  static double exp_term(double x) { return std::exp(x); }
  static auto exp_terms(double s) {
    return [s](double x) { return std::exp(x - s); };
  }
  static double ratio(double a, double b) { return a / b; }
  static double share(double part, double whole) { return part / whole; }
  static double log(double x) { return std::log(x); }
  static double sqrt(double x) { return std::sqrt(x); }
  static double larger(double a, double b) { return a > b || std::isnan(a) ? a : b; }
  static double smaller(double a, double b) { return a < b || std::isnan(a) ? a : b; }
};

constexpr double kCorrection = 1;

// The gradient as the struct F has it, element by element, in f64.
template <class F>
ref::Array gradient(const ref::Array& x, const ref::Array& dy, const Axes& axes) {
  Shape kept = x.shape;
  for (const int axis : axes) kept[axis] = 1;
  std::vector<Partial<double, F::kFields>> parts(static_cast<size_t>(kept.numel()),
                                                 F::template identity<double>());
  const auto set_of = [&](int64_t i) {
    int64_t set = 0, step = 1;
    for (int axis = x.shape.rank() - 1; axis >= 0; --axis) {
      set += i % x.shape[axis] % kept[axis] * step;
      i /= x.shape[axis];
      step *= kept[axis];
    }
    return static_cast<size_t>(set);
  };
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double value[1] = {x[i]};
    auto& part = parts[set_of(i)];
    part = F::template merge<HostMath>(part, F::template of<HostMath>(value));
  }
  const double m = static_cast<double>(x.numel() / kept.numel());
  ref::Array dx = x;
  for (int64_t i = 0; i < x.numel(); ++i) {
    const Reduced<double> of = F::template finish<HostMath>(parts[set_of(i)], m - kCorrection);
    const auto terms = F::template terms<HostMath>(dy[static_cast<int64_t>(set_of(i))], of.stat0,
                                                   of.stat1, m - kCorrection);
    dx[i] = F::template dx<HostMath>(x[i], terms);
  }
  return dx;
}

struct Named {
  const char* name;
  Gradient gradient;
};

// Small sets of numbers in steps of a half, so that there are ties and zeros.
void expect_rejected(const Gradient& want_of, const Gradient& right,
                     const std::vector<Named>& mutants) {
  const std::pair<Shape, Axes> sets[] = {
      {{6}, {0}}, {{5, 7}, {1}}, {{7, 5}, {0}}, {{2, 3, 4, 5}, {0, 2, 3}}, {{4, 3, 4}, {1}}};
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    std::mt19937_64 random(5);
    std::normal_distribution<double> normal;
    std::vector<int> rejections(mutants.size(), 0);
    for (const auto& [shape, axes] : sets) {
      ref::Array x = ref::zeros(shape);
      for (double& value : x.data) value = std::round(2 * normal(random)) / 2;
      Shape kept = shape;
      for (const int axis : axes) kept[axis] = 1;
      const ref::Array dy = draw_upstream(kept, dtype, 8);
      const ref::Array want = want_of(x, dy, axes);
      const int64_t m = shape.numel() / kept.numel();
      EXPECT_TRUE(compare(right(x, dy, axes).data, want.data, dtype, m, 4)) << to_string(shape);
      for (size_t i = 0; i < mutants.size(); ++i) {
        rejections[i] += !compare(mutants[i].gradient(x, dy, axes).data, want.data, dtype, m, 4);
      }
    }
    for (size_t i = 0; i < mutants.size(); ++i) {
      EXPECT_GE(rejections[i], 3) << mutants[i].name << " in " << to_string(dtype);
    }
  }
}

template <class F>
struct TiesNotShared : F {
  template <class Math, class V>
  static auto terms(V dy, V y, V, double p) {
    return F::template terms<Math>(dy, y, V(1), p);
  }
};
template <class F>
struct SharedAmongAll : F {
  template <class Math, class V>
  static V dx(V, const typename F::template Terms<V>& t) {
    return t.share;
  }
};
template <class F>
struct CountOneTooMany : F {
  template <class Math, class V>
  static auto terms(V dy, V y, V count, double p) {
    return F::template terms<Math>(dy, y, count + 1, p);
  }
};

TEST(ReduceMutants, OfMaxAndMinAreRejected) {
  using reductions::Max, reductions::Min;
  expect_rejected(ref::max_backward, gradient<Max>,
                  {{"ties not shared", gradient<TiesNotShared<Max>>},
                   {"shared among all elements", gradient<SharedAmongAll<Max>>},
                   {"one tie too many", gradient<CountOneTooMany<Max>>},
                   {"of the smallest", gradient<Min>}});
  expect_rejected(ref::min_backward, gradient<Min>,
                  {{"ties not shared", gradient<TiesNotShared<Min>>},
                   {"shared among all elements", gradient<SharedAmongAll<Min>>},
                   {"one tie too many", gradient<CountOneTooMany<Min>>},
                   {"of the largest", gradient<Max>}});
}

struct ProdDividedByX : reductions::Prod {
  template <class Math, class A>
  static Reduced<A> finish(const Partial<A, 2>& part, double p) {
    const Reduced<A> result = Prod::finish<Math>(part, p);
    return {result.y, result.y, 0};
  }
};
struct ProdWithoutZeros : reductions::Prod {
  template <class Math, class V>
  static V dx(V x, const Terms<V>& t) {
    return x == 0 ? 0 : t.dy * t.product / x;
  }
};
struct ProdZerosGetAll : reductions::Prod {
  template <class Math, class V>
  static V dx(V x, const Terms<V>& t) {
    if (t.zeros == 0) return t.dy * t.product / x;
    return x == 0 ? t.dy * t.product : 0;  // two zeros, too
  }
};
struct ProdOfAll : reductions::Prod {
  template <class Math, class V>
  static V dx(V, const Terms<V>& t) {
    return t.zeros == 0 ? t.dy * t.product : 0;
  }
};

TEST(ReduceMutants, OfProdAreRejected) {
  expect_rejected(ref::prod_backward, gradient<reductions::Prod>,
                  {{"product divided by x", gradient<ProdDividedByX>},
                   {"zeros left out", gradient<ProdWithoutZeros>},
                   {"two zeros get a gradient", gradient<ProdZerosGetAll>},
                   {"product of all", gradient<ProdOfAll>}});
}

struct NormWithoutDivision : reductions::Norm2 {
  template <class Math, class V>
  static Terms<V> terms(V dy, V, V, double) {
    return {dy};
  }
};
struct NormSquared : reductions::Norm2 {
  template <class Math, class V>
  static Terms<V> terms(V dy, V y, V, double) {
    return {y == 0 ? 0 : dy / (y * y)};
  }
};
struct NormTwice : reductions::Norm2 {
  template <class Math, class V>
  static Terms<V> terms(V dy, V y, V, double) {
    return {y == 0 ? 0 : 2 * dy / y};
  }
};

TEST(ReduceMutants, OfNorm2AreRejected) {
  expect_rejected(ref::norm2_backward, gradient<reductions::Norm2>,
                  {{"not divided by the norm", gradient<NormWithoutDivision>},
                   {"divided by the square", gradient<NormSquared>},
                   {"factor 2 of the square", gradient<NormTwice>}});
}

struct LogSumExpUnnormalised : reductions::LogSumExp {
  template <class Math, class V>
  static V dx(V x, const Terms<V>& t) {
    return t.dy * Math::exp(x);
  }
};
struct LogSumExpOfMax : reductions::LogSumExp {
  template <class Math, class A>
  static Reduced<A> finish(const Partial<A, 2>& part, double) {
    return {part.v[kMax], part.v[kMax]};
  }
};
struct LogSumExpWithoutUpstream : reductions::LogSumExp {
  template <class Math, class V>
  static V dx(V x, const Terms<V>& t) {
    return Math::exp(x - t.y);
  }
};
struct LogSumExpAsLogSoftmax : reductions::LogSumExp {
  template <class Math, class V>
  static V dx(V x, const Terms<V>& t) {
    return t.dy * (1 - Math::exp(x - t.y));
  }
};

TEST(ReduceMutants, OfLogsumexpAreRejected) {
  expect_rejected(ref::logsumexp_backward, gradient<reductions::LogSumExp>,
                  {{"not normalised", gradient<LogSumExpUnnormalised>},
                   {"maximum in place of y", gradient<LogSumExpOfMax>},
                   {"upstream forgotten", gradient<LogSumExpWithoutUpstream>},
                   {"gradient of log_softmax", gradient<LogSumExpAsLogSoftmax>}});
}

template <class F>
struct MeanKept : F {
  template <class Math, class V>
  static V dx(V x, const typename F::template Terms<V>& t) {
    return x * t.scale;
  }
};
template <class F>
struct CountMissing : F {
  template <class Math, class V>
  static auto terms(V dy, V a, V b, double) {
    return F::template terms<Math>(dy, a, b, 1.0);
  }
};
template <class F>
struct CorrectionIgnored : F {
  template <class Math, class V>
  static auto terms(V dy, V a, V b, double divisor) {
    return F::template terms<Math>(dy, a, b, divisor + kCorrection);
  }
};
template <class F, int kPercent>
struct Scaled : F {
  template <class Math, class V>
  static V dx(V x, const typename F::template Terms<V>& t) {
    return F::template dx<Math>(x, t) * (kPercent / 100.0);
  }
};
struct StdNotDivided : reductions::Std {
  template <class Math, class V>
  static Terms<V> terms(V dy, V, V mean, double divisor) {
    return {mean, dy / divisor};
  }
};
struct StdCorrectedTwice : reductions::Std {
  template <class Math, class V>
  static Terms<V> terms(V dy, V y, V mean, double divisor) {
    return {mean, y == 0 ? 0 : dy / (y * (divisor - kCorrection))};
  }
};

TEST(ReduceMutants, OfVarAreRejected) {
  using reductions::Var;
  const auto want = [](const ref::Array& x, const ref::Array& dy, const Axes& axes) {
    return ref::var_backward(x, dy, axes, kCorrection);
  };
  expect_rejected(want, gradient<Var>,
                  {{"mean not subtracted", gradient<MeanKept<Var>>},
                   {"1/(m - correction) missing", gradient<CountMissing<Var>>},
                   {"correction ignored", gradient<CorrectionIgnored<Var>>},
                   {"factor 2 missing", gradient<Scaled<Var, 50>>}});
}

TEST(ReduceMutants, OfStdAreRejected) {
  using reductions::Std;
  const auto want = [](const ref::Array& x, const ref::Array& dy, const Axes& axes) {
    return ref::std_backward(x, dy, axes, kCorrection);
  };
  expect_rejected(want, gradient<Std>,
                  {{"mean not subtracted", gradient<MeanKept<Std>>},
                   {"1/(m - correction) missing", gradient<CountMissing<Std>>},
                   {"correction ignored", gradient<CorrectionIgnored<Std>>},
                   {"correction twice", gradient<StdCorrectedTwice>},
                   {"not divided by std", gradient<StdNotDivided>},
                   {"factor 2 of the variance", gradient<Scaled<Std, 200>>}});
}

// sum and mean have no struct with a gradient: dx = dy, and dy / m.
TEST(ReduceMutants, OfSumAndMeanAreRejected) {
  const auto spread = [](double factor_of_m) {
    return [=](const ref::Array& x, const ref::Array& dy, const Axes& axes) {
      const double m = static_cast<double>(x.numel() / dy.numel());
      ref::Array dx = ref::sum_backward(x.shape, dy, axes);
      for (double& value : dx.data) value *= std::pow(m, factor_of_m);
      return dx;
    };
  };
  const auto sum = [](const ref::Array& x, const ref::Array& dy, const Axes& axes) {
    return ref::sum_backward(x.shape, dy, axes);
  };
  const auto mean = [](const ref::Array& x, const ref::Array& dy, const Axes& axes) {
    return ref::mean_backward(x.shape, dy, axes);
  };
  expect_rejected(sum, spread(0), {{"divided by m", spread(-1)}, {"times m", spread(1)}});
  expect_rejected(mean, spread(-1), {{"1/m missing", spread(0)}, {"1/m twice", spread(-2)}});
}

}  // namespace
}  // namespace gradus
