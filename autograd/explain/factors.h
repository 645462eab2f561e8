// What the factors say with which the formula's terms fit a claimed gradient.
#pragma once

#include "autograd/explain/slips.h"

namespace gradus::explain {

struct FactorSlip {
  Slip slip = Slip::unknown;
  std::string text;
};

// A plain reading (a term missing, a sign, a count, a common scale) where rounding the factors to
// it still gives the claimed gradient, else wrong_coefficients.
FactorSlip read_factors(const Problem& problem, const std::vector<Term>& terms,
                        const std::vector<double>& factors, const Values& claimed, double allowed);

// "0.5", "1.2": four digits.
std::string rounded_factor(double factor);

}  // namespace gradus::explain
