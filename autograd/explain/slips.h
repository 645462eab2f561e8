// The zoo of wrong backwards: what each usual slip gives for given inputs.
#pragma once

#include "autograd/explain/diagnosis.h"
#include "autograd/explain/rounding.h"
#include "autograd/explain/steps.h"

namespace gradus::explain {

// Inputs as numbers of the precision of the scope in which the problem is made (rounding.h); it
// must last while they are worked with.
struct Problem {
  Setting setting;
  Layout layout;
  Shape shape;                        // of x
  Numbers x, dy, gamma;               // per element
  Numbers running_mean, running_var;  // per set; empty where the layer has none
};
Problem problem_of(const Setting& setting, const Inputs& inputs);

struct Term {
  std::string name;
  Numbers values;
};

// A gradient of x as a sum of terms.
struct Candidate {
  Slip slip;
  std::string text;
  std::vector<Term> terms;
  int64_t m = 0;  // elements that its sums add up; 0: as many as the layer's sets have
};
Numbers sum_of(const std::vector<Term>& terms);

// A gradient of gamma or beta.
struct SumCandidate {
  Slip slip;
  std::string text;
  Numbers values;
};

// Statistics as each element sees them.
struct Statistics {
  Numbers mu, rstd;
};
Numbers normalized(const Problem& problem, const Statistics& statistics);  // xhat
// dgamma from that xhat.
Numbers dgamma_with(const Problem& problem, const Statistics& statistics);

// The statistics of the formula, and those of usual slips.
struct NamedStatistics {
  Slip slip;
  std::string text;  // "eps is missing in rstd"
  Statistics statistics;
};
std::vector<NamedStatistics> statistics_candidates(const Problem& problem);  // the right ones first
// Those over sets that a layer's own may be mistaken for, and those of another layer or mode.
std::vector<NamedStatistics> other_statistics(const Problem& problem);

// All candidates for each gradient, the right one first. dgamma and dbeta are empty for layers
// without them.
struct Zoo {
  std::vector<Candidate> dx;
  std::vector<SumCandidate> dgamma, dbeta;
};
Zoo zoo_of(const Problem& problem);

// One layer's or kind's dx.
std::vector<Candidate> norm_candidates(const Problem& problem,
                                       const std::vector<NamedStatistics>& statistics);
std::vector<Candidate> evaluation_candidates(const Problem& problem,
                                             const std::vector<NamedStatistics>& statistics);
std::vector<Candidate> response_candidates(const Problem& problem);
std::vector<Candidate> softmax_candidates(const Problem& problem);

// Elements that are added up together, by a number of each element's set.
struct Sets {
  std::vector<int64_t> of;
  Values count;  // elements of each set
};
Sets sets_of(std::vector<int64_t> keys);  // keys: not negative, below their count
Numbers mean_over(const Sets& sets, const Numbers& values);  // as each element sees it
Numbers sum_over(const Sets& sets, const Numbers& values);
Numbers product(const Numbers& a, const Numbers& b);

}  // namespace gradus::explain
