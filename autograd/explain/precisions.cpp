#include "autograd/explain/precisions.h"

#include <algorithm>

#include "core/tolerance.h"

namespace gradus::explain {
namespace {

// In what the claim may have been computed, from the finest on.
std::vector<Precision> precisions(DType claim, DType inputs) {
  std::vector<Precision> all{{claim, acc_dtype(claim)}};
  if (claim == DType::f64) all.push_back({claim, DType::f32});
  if (acc_dtype(claim) != claim) all.push_back({claim, claim});
  if (unit_roundoff(inputs) > unit_roundoff(all.back().work)) all.push_back({claim, inputs});
  return all;
}

// What is wrong where it is finite.
Slip slip_of(const Judged& one) {
  const Finding& finding = one.finding;
  const bool partly = finding.slip == Slip::not_finite && !finding.also.empty();
  return partly ? finding.also.front() : finding.slip;
}

bool is_right(const Judged& one) { return slip_of(one) == Slip::none; }

// Right, or it has a name.
bool is_told(const Judged& one) {
  return slip_of(one) != Slip::unknown && slip_of(one) != Slip::cannot_tell;
}

// A name that rests on a fitted number is one that a coarser precision may not need.
bool is_plain(const Judged& one) { return is_told(one) && !one.finding.fitted; }

// Wrong, with a list of what it could be.
bool is_listed(const Judged& one) {
  return slip_of(one) == Slip::cannot_tell && !one.finding.right_or_not;
}

void leave_open(Finding& finding) {
  finding.slip = Slip::cannot_tell;
  finding.right_or_not = true;
}

// By the finest alone where that is plain: then a coarser one has nothing to add.
std::vector<Judged> judged_by_each(DType claim, DType inputs,
                                   const std::function<Finding()>& judge) {
  std::vector<Judged> all;
  for (const Precision precision : precisions(claim, inputs)) {
    const RoundingScope scope(precision);
    Judged one{judge(), precision};
    one.finding.exact_to = precision.coarser();
    one.finding.coarse = !all.empty();
    all.push_back(std::move(one));
    if (is_plain(all.front())) break;
  }
  return all;
}

// The finest has a name, but a fitted one.
Judged judged_beside_fit(std::vector<Judged> all, DType claim) {
  // In half precision throughout a right gradient may look like one of slightly other statistics.
  const auto right = std::ranges::find_if(all, is_right);
  if (size_of(claim) == 2 && right != all.end()) {
    if (right->finding.hidden > 0) leave_open(right->finding);
    return std::move(*right);
  }
  // A plain name by a coarser one is as good as a fitted one.
  Finding& finest = all.front().finding;
  for (const Judged& one : all) {
    if (!is_plain(one) || is_right(one)) continue;
    finest.text += "; or: " + one.finding.text;
    finest.also.push_back(one.finding.slip);
    finest.also.insert(finest.also.end(), one.finding.also.begin(), one.finding.also.end());
  }
  return std::move(all.front());
}

// Where rounding to a coarse precision leaves nothing of some sets, it makes them right or
// anything.
bool settles(const Judged& one) {
  return is_told(one) && !(is_right(one) && one.finding.hidden > 0);
}

// None of them settles it.
Judged judged_open(const std::vector<Judged>& all) {
  const Judged& finest = all.front();
  for (const Judged& one : all) {
    // Where the finest knows nothing, a coarser one may know what it could be.
    if (slip_of(finest) == Slip::unknown && slip_of(one) == Slip::cannot_tell) return one;
    if (!is_right(one) && !one.finding.right_or_not) continue;
    // It may be right; what it is if it is not, the finest says best.
    Judged open = one;
    leave_open(open.finding);
    if (is_listed(finest)) {
      open.finding.text = finest.finding.text;
      open.finding.also = finest.finding.also;
    }
    return open;
  }
  return finest;
}

}  // namespace

Judged judged(DType claim, DType inputs, const std::function<Finding()>& judge) {
  std::vector<Judged> all = judged_by_each(claim, inputs, judge);
  if (is_plain(all.front())) return std::move(all.front());
  if (is_told(all.front())) return judged_beside_fit(std::move(all), claim);
  const auto settled = std::ranges::find_if(all, settles);
  return settled != all.end() ? std::move(*settled) : judged_open(all);
}

}  // namespace gradus::explain
