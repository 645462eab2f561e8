// By which precision a claim is judged: it does not say in what it was computed.
#pragma once

#include <functional>

#include "autograd/explain/diagnosis.h"
#include "autograd/explain/rounding.h"

namespace gradus::explain {

struct Judged {
  Finding finding;
  Precision precision;  // by which it was found
};

// The first precision in which the claim may have been computed, from the finest on, that makes it
// right or gives it a name; where none does, what they leave open. `judge` judges in the scope of
// the precision (rounding.h). inputs: the coarsest dtype of what the claim was computed from.
Judged judged(DType claim, DType inputs, const std::function<Finding()>& judge);

}  // namespace gradus::explain
