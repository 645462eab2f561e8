#include "autograd/explain/steps.h"

#include <utility>

namespace gradus::explain {

Numbers sums_of(const Numbers& values, const std::vector<int64_t>& group, int64_t count) {
  std::vector<Sum> sums(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) sums[at(group, i)].add(values[i]);
  return each(sums.size(), [&](size_t k) { return sums[k].total(); });
}

Worst worst_of(const Values& differences, const Values& bounds) {
  const auto rank = [](const Worst& one) {
    const Verdict verdict = verdict_of(one.difference, one.bound);
    const bool has_share = verdict == Verdict::holds || verdict == Verdict::fails;
    return std::pair(verdict, has_share && one.bound > 0 ? one.difference / one.bound : 0);
  };
  Worst worst;
  for (size_t i = 0; i < differences.size(); ++i) {
    const Worst one{differences[i], bounds[i]};
    if (i == 0 || rank(one) > rank(worst)) worst = one;
  }
  return worst;
}

void StepList::add(std::string name, const Shape& shape, const Numbers& values, std::string formula,
                   std::string why, const Tensor& library, std::string against) {
  Worst worst;
  if (library.defined()) {
    const Values theirs = library.to_vector<double>();
    worst = worst_of(
        each(theirs.size(), [&](size_t i) { return std::abs(values[i].value - theirs[i]); }),
        each(theirs.size(), [&](size_t i) { return allowance(values[i]); }));
  }
  out_.steps.push_back({phase_, std::move(name), std::move(formula), std::move(why),
                        Tensor::from_vector(values_of(values), shape), std::move(against),
                        worst.difference, worst.bound});
}

void add_invariant(Derivation& out, std::string text, std::string why, const Numbers& sums) {
  const Worst worst = worst_of(each(sums.size(), [&](size_t s) { return std::abs(sums[s].value); }),
                               each(sums.size(), [&](size_t s) { return sums[s].error; }));
  out.invariants.push_back({std::move(text), std::move(why), worst.difference, worst.bound});
}

Numbers with_library(const Numbers& right, const Tensor& library) {
  const Values theirs = library.to_vector<double>();
  return each(right.size(), [&](size_t i) { return Number(theirs[i], allowance(right[i])); });
}

}  // namespace gradus::explain
