// What the derivations of all layers share: plain loops over sets, and the list of steps.
#pragma once

#include <cmath>
#include <type_traits>

#include "autograd/explain/derivation.h"
#include "autograd/explain/library.h"

namespace gradus::explain {

using Values = std::vector<double>;

// A vector of one value per element i: f(i).
template <class F>
auto each(size_t count, F&& f) {
  std::vector<std::decay_t<std::invoke_result_t<F&, size_t>>> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = f(i);
  return values;
}

inline size_t at(const std::vector<int64_t>& of, size_t i) { return static_cast<size_t>(of[i]); }

// The elements of each of `count` groups, by the number of each element's group.
using Members = std::vector<std::vector<size_t>>;
inline Members members_of(const std::vector<int64_t>& group, int64_t count) {
  Members members(static_cast<size_t>(count));
  for (size_t i = 0; i < group.size(); ++i) members[at(group, i)].push_back(i);
  return members;
}

// Σ over the elements of each set, in their order; the same over those that share a gamma.
inline Values sum_over_sets(const Layout& layout, const Values& values) {
  Values sums(static_cast<size_t>(layout.sets));
  for (size_t i = 0; i < values.size(); ++i) sums[at(layout.set, i)] += values[i];
  return sums;
}
inline Values sum_over_params(const Layout& layout, const Values& values) {
  Values sums(static_cast<size_t>(layout.params));
  for (size_t i = 0; i < values.size(); ++i) sums[at(layout.param, i)] += values[i];
  return sums;
}
inline Values mean_over_sets(const Layout& layout, const Values& values) {
  Values means = sum_over_sets(layout, values);
  for (double& mean : means) mean /= static_cast<double>(layout.m);
  return means;
}

// Σ over the channels from `below` below to `above` above each element, at its position.
Values window_sums(const Shape& shape, int64_t below, int64_t above, const Values& values);

// The larger of the two; NaN where either is.
inline double larger(double a, double b) { return a > b || std::isnan(a) ? a : b; }

// The largest magnitude of a - b; NaN where either has one.
inline double largest_difference(const Values& a, const Values& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = larger(largest, std::abs(a[i] - b[i]));
  return largest;
}

// Collects steps: computes, remembers, compares.
class StepList {
 public:
  StepList(Derivation& out, Phase phase) : out_(out), phase_(phase) {}
  void add(std::string name, const Shape& shape, const Values& values, std::string formula,
           std::string why, const Tensor& library = {}, std::string against = {}) {
    const double difference =
        library.defined() ? largest_difference(values, library.to_vector<double>()) : 0.0;
    out_.steps.push_back({phase_, std::move(name), std::move(formula), std::move(why),
                          Tensor::from_vector(values, shape), std::move(against), difference});
  }

 private:
  Derivation& out_;
  Phase phase_;
};

// `sums`, which should be 0 up to `bounds`, at the set where they are nearest to them.
void add_invariant(Derivation& out, std::string text, std::string why, const Values& sums,
                   const Values& bounds);

// Each fills steps, saved, invariants and notes.
void derive_norm(Derivation& out, const Layout& layout, const Library& library);
void derive_response(Derivation& out, const Layout& layout, const Library& library);
void derive_softmax(Derivation& out, const Layout& layout, const Library& library);

HalfNote half_note(const Setting& setting, const Inputs& inputs, const Layout& layout);

// How far rounding may take a sum of m terms that should cancel, the largest being `scale`.
inline double rounding_bound(int64_t m, double scale) {
  return 4 * static_cast<double>(m) * 0x1p-52 * scale;
}

}  // namespace gradus::explain
