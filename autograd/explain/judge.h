// Judges one claimed tensor: which candidate of the zoo it is, or what the fit says.
#pragma once

#include <map>

#include "autograd/explain/slips.h"

namespace gradus::explain {

// What statistics other than the sets' own explain a dx: found for each set from its fit on
// {d, 1, xhat}. An empty text where they do not. other_eps: one eps explains all sets.
struct FoundStatistics {
  Slip slip = Slip::stale_statistics;
  std::string text = {};
  Statistics statistics;
};
FoundStatistics explaining_statistics(const Problem& problem, const Values& claimed,
                                      double allowed);

// What a dx that no slip gives is made of, set by set: "; your dx is a·d + b + c·xhat ...", or
// nothing where the sets are too small to tell.
std::string unknown_text(const Problem& problem, const Values& claimed, double allowed);

// `right`: gradus's gradient. tolerance: a share of the largest term. Statistics that explain the
// gradient, if they are what is wrong, are left in `found`.
Finding judge_dx(const Problem& problem, const std::vector<Candidate>& candidates,
                 const Values& right, const Values& claimed, double tolerance,
                 FoundStatistics& found);
// claimed: one value per gamma, or one per sample and gamma.
Finding judge_sum(const Problem& problem, std::string name,
                  const std::vector<SumCandidate>& candidates, const Values& claimed,
                  double tolerance);

// For each slip of the zoo whether it changes any of the tensors that are claimed.
std::map<Slip, bool> visible_slips(const Problem& problem, const Zoo& zoo, const Claim& claim,
                                   double tolerance);

double largest(const Values& values);
bool is_finite(const Values& values);

}  // namespace gradus::explain
