#include "autograd/explain/fit.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace gradus::explain {
namespace {

using Values = std::vector<double>;

double dot(const Values& a, const Values& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

void subtract(Values& a, double factor, const Values& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] -= factor * b[i];
}

Values picked(const Values& values, const std::vector<size_t>& at) {
  if (at.empty()) return values;
  Values part;
  for (const size_t i : at) part.push_back(values[i]);
  return part;
}

}  // namespace

// Gram-Schmidt, twice over, since once may leave a part of columns that are nearly parallel.
Fit fit(const std::vector<const Values*>& columns, const Values& target,
        const std::vector<size_t>& at) {
  constexpr double kIndependent = 1e-6;
  std::vector<Values> q;
  std::vector<Values> r(columns.size(), Values(columns.size()));
  bool independent = true;
  Values rest = picked(target, at), solution(columns.size());
  double largest = 0;
  for (const Values* column : columns) {
    const Values values = picked(*column, at);
    largest = std::max(largest, std::sqrt(dot(values, values)));
  }
  for (size_t k = 0; k < columns.size(); ++k) {
    Values column = picked(*columns[k], at);
    for (int pass = 0; pass < 2; ++pass) {
      for (size_t j = 0; j < q.size(); ++j) {
        const double part = dot(q[j], column);
        r[j][k] += part;
        subtract(column, part, q[j]);
      }
    }
    const double norm = std::sqrt(dot(column, column));
    const bool counts = norm > kIndependent * largest;
    independent = independent && counts;
    r[k][k] = norm;
    for (double& value : column) value = counts ? value / norm : 0.0;
    q.push_back(column);
    solution[k] = dot(q[k], rest);
    subtract(rest, solution[k], q[k]);
  }
  Fit result;
  for (const double value : rest) result.residual = std::max(result.residual, std::abs(value));
  if (!independent) return result;
  for (size_t k = columns.size(); k-- > 0;) {
    for (size_t j = k + 1; j < columns.size(); ++j) solution[k] -= r[k][j] * solution[j];
    solution[k] /= r[k][k];
  }
  result.factors = solution;
  return result;
}

}  // namespace gradus::explain
