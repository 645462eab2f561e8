// Judges one claimed tensor: which candidate of the zoo it is, or what the fit says.
#pragma once

#include <set>

#include "autograd/explain/claimed.h"
#include "autograd/explain/slips.h"

namespace gradus::explain {

// What statistics other than the sets' own explain a dx: found for each set from its fit on
// {d, 1, xhat}. An empty text where they do not.
struct FoundStatistics {
  Slip slip = Slip::stale_statistics;
  std::string text = {};
  Statistics statistics = {};
  double bits = 0;  // by which it is no accident (Claimed::bits)
};
FoundStatistics explaining_statistics(const Problem& problem, const Claimed& claimed,
                                      const Numbers& right);
// The same by one eps for all sets.
FoundStatistics explaining_eps(const Problem& problem, const Claimed& claimed,
                               const Numbers& right);

// Of a claim that no slip gives, where it is wrong: "; it is right in 2 of 3 sets ...", or nothing
// where most groups are wrong.
std::string where_text(const Claimed& claimed, std::string_view groups);

// What a dx that no slip gives is made of, set by set: "; your dx is a·d + b + c·xhat ...", or
// nothing where the sets are too small to tell.
std::string unknown_text(const Problem& problem, const Claimed& claimed);

// All below work in the scope of the problem's precision (rounding.h).

// `library`: gradus's gradient, from which differences are taken. Statistics that explain the
// gradient, if they are what is wrong, are left in `found`.
Finding judge_dx(const Problem& problem, const std::vector<Candidate>& candidates,
                 const Values& library, const Values& claimed, FoundStatistics& found);
// claimed: one value per gamma, or one per sample and gamma.
Finding judge_sum(const Problem& problem, std::string name,
                  const std::vector<SumCandidate>& candidates, const Values& claimed);

// Adds the slips of the zoo that change that tensor by more than rounding: dx, dgamma or dbeta.
void add_visible(std::set<Slip>& visible, const Zoo& zoo, std::string_view tensor);

double largest(const Values& values);
bool is_finite(const Values& values);

}  // namespace gradus::explain
