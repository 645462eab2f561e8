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

Values picked(const Values& values, const Values& weights, const std::vector<size_t>& at) {
  Values part(at.empty() ? values.size() : at.size());
  for (size_t k = 0; k < part.size(); ++k) {
    const size_t i = at.empty() ? k : at[k];
    part[k] = weights[i] == 0 ? 0 : values[i] * weights[i];
  }
  return part;
}

// R·x = b, by the columns from the last to the first.
Values solved(const std::vector<Values>& r, Values b) {
  for (size_t k = b.size(); k-- > 0;) {
    for (size_t j = k + 1; j < b.size(); ++j) b[k] -= r[k][j] * b[j];
    b[k] /= r[k][k];
  }
  return b;
}

}  // namespace

std::vector<const Values*> pointers_to(const std::vector<Values>& columns) {
  std::vector<const Values*> pointers;
  for (const Values& column : columns) pointers.push_back(&column);
  return pointers;
}

// Gram-Schmidt, twice over, since once may leave a part of columns that are nearly parallel.
Fit fit(const std::vector<const Values*>& columns, const Values& target, const Values& weights,
        const std::vector<size_t>& at) {
  constexpr double kIndependent = 1e-10;
  const size_t count = columns.size();
  std::vector<Values> q, r(count, Values(count));
  Values rest = picked(target, weights, at), solution(count);
  const double root = std::sqrt(static_cast<double>(rest.size()));
  for (size_t k = 0; k < count; ++k) {
    Values column = picked(*columns[k], weights, at);
    const double whole = std::sqrt(dot(column, column));
    for (int pass = 0; pass < 2; ++pass) {
      for (size_t j = 0; j < k; ++j) {
        const double part = dot(q[j], column);
        r[j][k] += part;
        subtract(column, part, q[j]);
      }
    }
    r[k][k] = std::sqrt(dot(column, column));
    if (!(r[k][k] > kIndependent * whole)) return {};
    for (double& value : column) value /= r[k][k];
    q.push_back(column);
    solution[k] = dot(q[k], rest);
    subtract(rest, solution[k], q[k]);
  }
  Fit result{solved(r, solution), Values(count)};
  for (size_t j = 0; j < count; ++j) {
    Values unit(count);
    unit[j] = root;
    unit = solved(r, std::move(unit));
    for (size_t k = 0; k < count; ++k) result.uncertain[k] += std::abs(unit[k]);
  }
  return result;
}

Fit fit_terms(const std::vector<const Values*>& columns, const Values& target,
              const Values& weights, const std::vector<size_t>& at) {
  const Fit found = fit(columns, target, weights, at);
  const auto told = [](double uncertain) { return uncertain < 0.25; };
  return std::ranges::all_of(found.uncertain, told) ? found : Fit{};
}

}  // namespace gradus::explain
