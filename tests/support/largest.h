// The size of a tensor's values, to compare tensors by.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/tensor.h"

namespace gradus::test {

// The largest magnitude.
inline double largest(const Tensor& tensor) {
  double largest = 0;
  for (const double value : tensor.to_vector<double>())
    largest = std::max(largest, std::abs(value));
  return largest;
}

}  // namespace gradus::test
