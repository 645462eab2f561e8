// Least squares with a handful of columns.
#pragma once

#include <cstddef>
#include <vector>

namespace gradus::explain {

struct Fit {
  std::vector<double> factors;    // of the columns; empty where they are not independent
  std::vector<double> uncertain;  // how far off each may be for errors of the target within bounds
};

std::vector<const std::vector<double>*> pointers_to(
    const std::vector<std::vector<double>>& columns);

// target ≈ Σ factor·column over the elements `at` (empty: all of them). weights: 1/bound of the
// target's error; elements of weight 0 say nothing.
Fit fit(const std::vector<const std::vector<double>*>& columns, const std::vector<double>& target,
        const std::vector<double>& weights, const std::vector<std::size_t>& at = {});

// The same of the terms of a formula, whose factors are near 1: none where the bounds let one of
// them be off by a quarter.
Fit fit_terms(const std::vector<const std::vector<double>*>& columns,
              const std::vector<double>& target, const std::vector<double>& weights,
              const std::vector<std::size_t>& at = {});

}  // namespace gradus::explain
