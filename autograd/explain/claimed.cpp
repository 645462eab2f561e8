#include "autograd/explain/claimed.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "autograd/explain/fit.h"

namespace gradus::explain {
namespace {

double bits_of(double distance, double allowed) {
  return distance > allowed ? std::log2(distance / allowed) : 0;
}

// The least number of columns whose sum gives `off` in the group; the group's size where none does.
int64_t ways_off(const std::vector<Values>& columns, const Values& off, const Values& weights,
                 const std::vector<size_t>& group) {
  const unsigned all = (1U << columns.size()) - 1;
  int64_t least = std::ssize(group);
  for (unsigned chosen = 1; chosen <= all; ++chosen) {
    const int64_t count = std::popcount(chosen);
    if (count >= least) continue;
    std::vector<const Values*> some;
    for (size_t k = 0; k < columns.size(); ++k)
      if ((chosen >> k & 1U) != 0) some.push_back(&columns[k]);
    const Fit found = fit(some, off, weights, group);
    const bool gives = !found.factors.empty() && std::ranges::all_of(group, [&](size_t i) {
      double rest = off[i];
      for (size_t k = 0; k < some.size(); ++k) rest -= found.factors[k] * (*some[k])[i];
      return std::abs(rest) * weights[i] <= 1;
    });
    if (gives) least = count;
  }
  return least;
}

}  // namespace

double spare(Values bits, size_t unknowns) {
  std::ranges::sort(bits, std::greater());
  const auto first = bits.begin() + static_cast<int64_t>(std::min(unknowns, bits.size()));
  return std::accumulate(first, bits.end(), 0.0);
}

Claimed::Claimed(Values values, Numbers right, Groups groups)
    : values_(std::move(values)),
      right_(std::move(right)),
      groups_(std::move(groups)),
      left_out_(static_cast<size_t>(groups_.count)) {
  for (size_t i = 0; i < values_.size(); ++i)
    if (!std::isfinite(values_[i])) left_out_[at(groups_.of, i)] = true;
  weights_ = each(values_.size(), [&](size_t i) {
    const double weight = 1 / allowance(right_[i]);
    return left_out_[at(groups_.of, i)] || !std::isfinite(weight) ? 0.0 : weight;
  });
  if (!is_right()) count_free();
}

int64_t Claimed::groups_left_out() const { return std::ranges::count(left_out_, true); }

bool Claimed::agrees(const Number& value, size_t i) const {
  if (left_out_[at(groups_.of, i)]) return true;
  const double allowed = allowance(value);
  return std::isfinite(value.value) && !(std::abs(value.value - values_[i]) > allowed);
}

bool Claimed::agrees(const Numbers& gradient) const {
  for (size_t i = 0; i < values_.size(); ++i)
    if (!agrees(gradient[i], i)) return false;
  return true;
}

bool Claimed::is_right() const { return agrees(right_); }

double Claimed::worst_share() const {
  double share = 0;
  for (size_t i = 0; i < values_.size(); ++i)
    if (std::isfinite(values_[i])) share = std::max(share, distance(i) / allowance(right_[i]));
  return share;
}

Claimed::Power Claimed::power(const Values& scale) const {
  Values most(static_cast<size_t>(groups_.count)), allowed = most;
  for (size_t i = 0; i < values_.size(); ++i) {
    const size_t group = at(groups_.of, i);
    most[group] = std::max(most[group], scale[i]);
    allowed[group] = larger(allowed[group], allowance(right_[i]));
  }
  Power power;
  for (size_t k = 0; k < most.size(); ++k) {
    // A set whose terms are all 0 is judged by nothing, unless they are 0 by overflow.
    if (left_out_[k] || (most[k] == 0 && std::isfinite(allowed[k]))) continue;
    ++(8 * allowed[k] <= most[k] ? power.judged : power.hidden);
  }
  return power;
}

// In how many ways the claim is off in each group.
void Claimed::count_free() {
  std::vector<Values> columns;
  for (const Numbers& part : groups_.parts) columns.push_back(values_of(part));
  const Values off = each(values_.size(), [&](size_t i) { return values_[i] - right_[i].value; });
  for (const std::vector<size_t>& group : members_of(groups_.of, groups_.count)) {
    const int64_t free = std::max<int64_t>(1, std::ssize(group) - groups_.bound);
    free_.push_back(std::min(free, ways_off(columns, off, weights_, group)));
  }
}

// Of each group up to `most`, without the largest ones, which fitted numbers took.
Values Claimed::largest_bits(const Numbers& gradient, int64_t fitted_per_group,
                             int64_t most) const {
  std::vector<Values> groups(static_cast<size_t>(groups_.count));
  for (size_t i = 0; i < values_.size(); ++i) {
    if (weights_[i] != 0)
      groups[at(groups_.of, i)].push_back(bits_of(distance(i), allowance(gradient[i])));
  }
  Values all;
  for (size_t k = 0; k < groups.size(); ++k) {
    std::ranges::sort(groups[k], std::greater());
    const int64_t kept = std::min({most, free_[k], std::ssize(groups[k])});
    const int64_t first = std::min(fitted_per_group, kept);
    all.insert(all.end(), groups[k].begin() + first, groups[k].begin() + kept);
  }
  return all;
}

Values Claimed::bits(const Numbers& gradient, int64_t fitted_per_group) const {
  return largest_bits(gradient, fitted_per_group, std::ssize(values_));
}

Values Claimed::bits_of_parts(const Numbers& gradient, int64_t fitted_per_group) const {
  return largest_bits(gradient, fitted_per_group, std::ssize(groups_.parts));
}

}  // namespace gradus::explain
