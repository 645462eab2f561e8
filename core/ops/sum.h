// Sum over a set of axes.
#pragma once

#include "core/backend.h"
#include "core/ops/partial.h"

namespace gradus {

// y[j] = scale · Σ x[i] over the elements i that reduce to j; scale = 1/m gives the mean.
// backward: dx[i] = scale · dy[j], a stride-0 view of dy where scale is 1.
//
// An empty set gives 0 · scale. The order of addition depends on the shape, the strides and the
// alignment of x only, and no running sum is longer than a few hundred additions. The scale is
// applied in f64.
struct Sum {
  static constexpr std::string_view name = "sum";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView x;  // any shape and strides
  AnyView y;  // the rank of x, 1 along the summed axes; dense; dtype of x or acc_dtype(x.dtype)
  double scale = 1.0;

  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, y); }
  int64_t bytes() const { return x.nbytes() + y.nbytes(); }
  int64_t flops() const { return x.numel(); }
  static Guarantee guarantee() { return {}; }
};

namespace reductions {

// The sum as one of the reductions of core/ops/reduce.h; the parameter is the scale.
struct Sum {
  static constexpr int kFields = 1;

  template <class V>
  GRADUS_HD static Partial<V, 1> identity() {
    return {V{}};
  }
  template <class Math, class V, int U>
  GRADUS_HD static Partial<V, 1> of(const V (&x)[U]) {
    return {fold_sum(x)};
  }
  template <class Math, class V>
  GRADUS_HD static Partial<V, 1> merge(const Partial<V, 1>& a, const Partial<V, 1>& b) {
    return {a.v[0] + b.v[0]};
  }
  template <class Math, class A>
  GRADUS_HD static Reduced<A> finish(const Partial<A, 1>& part, double scale) {
    return {static_cast<A>(static_cast<double>(part.v[0]) * scale)};
  }
};

}  // namespace reductions

void run(Cpu&, const Sum&);
void run(Cuda&, const Sum&);

}  // namespace gradus
