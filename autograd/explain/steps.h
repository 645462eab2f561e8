// What the derivations of all layers share: plain loops over sets, in numbers that carry what
// rounding may add to them, and the list of steps.
#pragma once

#include <cmath>
#include <type_traits>

#include "autograd/explain/derivation.h"
#include "autograd/explain/library.h"
#include "autograd/explain/rounding.h"

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

// Σ over the elements of each group, in their order: of the sets, or of those that share a gamma.
Numbers sums_of(const Numbers& values, const std::vector<int64_t>& group, int64_t count);
inline Numbers sum_over_sets(const Layout& layout, const Numbers& values) {
  return sums_of(values, layout.set, layout.sets);
}
inline Numbers sum_over_params(const Layout& layout, const Numbers& values) {
  return sums_of(values, layout.param, layout.params);
}
inline Numbers mean_over_sets(const Layout& layout, const Numbers& values) {
  Numbers means = sum_over_sets(layout, values);
  for (Number& mean : means) mean = mean / static_cast<double>(layout.m);
  return means;
}

// Σ over the channels from `below` below to `above` above each element, at its position.
Numbers window_sums(const Shape& shape, int64_t below, int64_t above, const Numbers& values);

inline Numbers numbers_of(const Tensor& tensor) { return as_inputs(tensor.to_vector<double>()); }

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
  void add(std::string name, const Shape& shape, const Numbers& values, std::string formula,
           std::string why, const Tensor& library = {}, std::string against = {});

 private:
  Derivation& out_;
  Phase phase_;
};

// `sums`, which should be 0 up to their errors, at the set where they are nearest to that.
void add_invariant(Derivation& out, std::string text, std::string why, const Numbers& sums);
// A gradient as the library gives it, with what rounding may have added to it.
Numbers with_library(const Numbers& right, const Tensor& library);

// A gradient by the formula, empty where the layer has none, and the size of what adds up to each
// element.
struct Expected {
  Numbers gradient;
  Values terms;
};

// What finite differences of the forward are taken and judged by.
struct Motion {
  Numbers y;
  Expected dx, dgamma, dbeta;
  Values scale;  // of each x: a move of this size bends y; infinite where y is linear in it
};

// Each fills steps, saved, invariants and notes.
Motion derive_norm(Derivation& out, const Layout& layout, const Library& library);
Motion derive_response(Derivation& out, const Layout& layout, const Library& library);
Motion derive_softmax(Derivation& out, const Layout& layout, const Library& library);

HalfNote half_note(const Setting& setting, const Inputs& inputs, const Layout& layout);

}  // namespace gradus::explain
