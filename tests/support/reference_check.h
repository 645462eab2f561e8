// What the tests of the references share: a golden case, and a gradient against finite differences.
#pragma once

#include <algorithm>
#include <cmath>

#include "tests/support/compare_gtest.h"
#include "tests/support/golden.h"

namespace gradus::ref {

// PyTorch's f64 against the reference; m values are added up per result, the largest about `scale`
// (0: no larger than the results).
inline testing::AssertionResult agrees_with_golden(const Array& got, const Json& want, int64_t m,
                                                   double scale = 0) {
  const Array array = golden_array(want);
  if (!(got.shape == array.shape)) {
    return testing::AssertionFailure()
           << "shape " << to_string(got.shape) << ", golden " << to_string(array.shape);
  }
  return agrees(got.data, array.data, DType::f64, m, scale);
}

// The derived gradient against central differences of the forward. A gradient near zero everywhere
// would prove nothing, so it fails.
inline testing::AssertionResult agrees_with_differences(const Array& dx, const Function& forward,
                                                        const Array& x, const Array& dy) {
  const Array numeric = numeric_gradient(forward, x, dy);
  double largest = 0;
  for (const double value : numeric.data) largest = std::max(largest, std::abs(value));
  if (largest < 1e-3) return testing::AssertionFailure() << "no power: the gradient is near 0";
  return agrees(dx.data, numeric.data, DType::f64,
                Tolerance{.relative = 1e-6, .of_scale = 0, .absolute = 1e-8});
}

}  // namespace gradus::ref
