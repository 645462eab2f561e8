// Sum over a set of axes.
#pragma once

#include "core/backend.h"

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

void run(Cpu&, const Sum&);
void run(Cuda&, const Sum&);

}  // namespace gradus
