// A claimed gradient beside the right one: what agrees with it within rounding, and whether that
// says anything.
#pragma once

#include "autograd/explain/rounding.h"
#include "autograd/explain/steps.h"

namespace gradus::explain {

// Values that belong together: a set of dx, one entry of dgamma or dbeta.
struct Groups {
  std::vector<int64_t> of;  // of each value
  int64_t count = 0;
  // So many values of a group follow from the others, in a right gradient and in most wrong ones:
  // Σ dx = 0 and Σ dx·xhat = 0.
  int64_t bound = 0;
  // What the terms of a formula multiply in each group, if that is known: a claim that is off by
  // their sum has no more to tell than how many of them are.
  std::vector<Numbers> parts = {};
};

class Claimed {
 public:
  // Groups in which the claim is not finite are left out of everything. Of the scope in which it is
  // made (rounding.h), which must last.
  Claimed(Values values, Numbers right, Groups groups);

  const Values& values() const { return values_; }
  const Groups& groups() const { return groups_; }
  int64_t groups_left_out() const;
  double distance(size_t i) const { return std::abs(values_[i] - right_[i].value); }

  bool is_right() const;
  bool agrees(const Numbers& gradient) const;
  bool agrees(const Number& value, size_t i) const;   // in one value
  const Values& weights() const { return weights_; }  // 1/allowance; 0: says nothing

  // The largest difference from the right gradient as a share of its allowance.
  double worst_share() const;

  // How many groups can be judged, and of how many rounding leaves nothing: there the allowance is
  // above an eighth of the group's scale, the largest magnitude behind the right gradient. Groups
  // of zeros are neither.
  struct Power {
    int64_t judged = 0, hidden = 0;
  };
  Power power(const Values& scale) const;

  // The bits by which it is no accident that a wrong gradient agrees: of each value log2 of the
  // claim's distance from the right one by the gradient's allowance; of a group so many as are
  // free, less those that numbers fitted to that group could have made agree.
  Values bits(const Numbers& gradient, int64_t fitted_per_group = 0) const;
  // The same of a gradient that is off by sums of the parts.
  Values bits_of_parts(const Numbers& gradient, int64_t fitted_per_group = 0) const;

 private:
  void count_free();
  Values largest_bits(const Numbers& gradient, int64_t fitted_per_group, int64_t most) const;

  Values values_;
  Numbers right_;
  Groups groups_;
  std::vector<bool> left_out_;  // per group
  Values weights_;
  std::vector<int64_t> free_;  // per group
};

// Σ but for the `unknowns` largest: so many fitted numbers could have made those agree.
double spare(Values bits, size_t unknowns = 0);

}  // namespace gradus::explain
