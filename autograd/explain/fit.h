// Least squares with a handful of columns.
#pragma once

#include <cstddef>
#include <vector>

namespace gradus::explain {

struct Fit {
  std::vector<double> factors;  // of the columns; empty where they are not independent
  double residual = 0;  // the largest magnitude of what is left; of the best that is possible
};

// target ≈ Σ factor·column, over the elements `at` of all (empty: all of them).
Fit fit(const std::vector<const std::vector<double>*>& columns, const std::vector<double>& target,
        const std::vector<std::size_t>& at = {});

}  // namespace gradus::explain
