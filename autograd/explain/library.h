// The layers of a Setting as gradus computes them: what a derivation is checked against.
#pragma once

#include "autograd/explain/setting.h"
#include "autograd/ops/norm_terms.h"

namespace gradus::explain {

struct Library {
  Tensor y, dx, dgamma, dbeta;
  NormStatistics saved;              // of the five norms
  NormTerms terms;                   // of the five norms in training
  Tensor denom;                      // of local_response_norm
  Tensor running_mean, running_var;  // as training left them; batch_norm
};

// y, from f64 inputs or from others of which x has any floating dtype. Running statistics are
// copied before training updates them; `updated`, if given, receives them as mean and rstd.
Tensor library_forward(const Setting& setting, const Inputs& inputs,
                       NormStatistics* saved = nullptr, NormStatistics* updated = nullptr);

// Forward and backward of complete inputs.
Library run_library(const Setting& setting, const Inputs& inputs);

}  // namespace gradus::explain
