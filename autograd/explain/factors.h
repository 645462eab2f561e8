// What the factors say with which the formula's terms fit a claimed gradient.
#pragma once

#include <cmath>

#include "autograd/explain/claimed.h"
#include "autograd/explain/slips.h"

namespace gradus::explain {

struct FactorSlip {
  Slip slip = Slip::unknown;
  std::string text;
  double bits = 0;      // by which it is no accident (Claimed::bits)
  bool fitted = false;  // to the claim, by some number
};

// Σ factor·term.
Numbers combined(const std::vector<Term>& terms, const Values& factors);

// Of a candidate's terms. A plain reading (a term missing, a sign, a count, a common scale) where
// rounding the factors to it still gives the claimed gradient, else wrong_coefficients; unknown
// where they do not give it.
FactorSlip read_factors(const Problem& problem, const Candidate& candidate, const Values& factors,
                        const Claimed& claimed);

// The same of one factor for all: a turned sign, a multiple.
FactorSlip read_scale(const Problem& problem, const Numbers& right, const Claimed& claimed);

// What nobody would take for a mistake.
inline bool is_one(double factor) { return std::abs(factor - 1) < 5e-5; }

// "0.5", "1.2", "1.0001": four digits, or six near 1.
std::string rounded_factor(double factor);

}  // namespace gradus::explain
