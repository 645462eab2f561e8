// What is wrong with a backward of a normalization, in words: the claimed gradients are compared
// with those of a list of usual slips, and their error is fitted on the terms of the formula.
//
//   const Setting setting{.layer = Layer::rms_norm};
//   const Diagnosis d = diagnose(setting, [](const Inputs& in) -> Claim { return mine(in); });
//   std::puts(d.text().c_str());  // "dx: WRONG, gamma_outside: gamma was pulled ..."
//
// An input may hide slips (an upstream of ones, a constant gamma, a single sample): then the
// diagnosis says which, why, and proposes an input that shows them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "autograd/explain/setting.h"

namespace gradus::explain {

enum class Slip : uint8_t {
  none,  // right
  not_finite,
  // terms and their factors
  direct_missing,
  mean_missing,
  mean_extra,  // rms_norm has none
  projection_missing,
  evaluation_formula,  // in training: mean and projection missing
  training_formula,    // in evaluation
  wrong_sign,
  wrong_count,  // divided by another number than m
  wrong_scale,  // the whole gradient is some multiple of the right one
  wrong_coefficients,
  rstd_missing,
  rstd_extra,
  // gamma
  gamma_outside,
  gamma_not_in_sums,
  gamma_missing,
  gamma_twice,
  // statistics and sets
  unbiased_variance,
  eps_missing,
  other_eps,
  eps_outside_root,
  stale_statistics,
  wrong_set,    // sums or statistics over other elements
  other_layer,  // the formula of another layer, with its statistics
  // dgamma and dbeta
  batch_sum_forgotten,  // of one sample only, or one value per sample
  batch_mean,           // divided by the number of samples
  x_for_xhat,
  gamma_in_dgamma,
  swapped,
  // local_response_norm
  window_not_mirrored,
  window_on_other_side,
  alpha_undivided,
  alpha_by_channels_in_range,
  neighbours_missing,
  wrong_power,
  border_repeated,
  // softmax2d
  sum_missing,
  sum_unweighted,
  y_missing,
  y_on_one_term,
  log_form,
  last_left_out,

  unknown
};
std::string_view to_string(Slip slip);

// What a learner's backward gives; undefined tensors are not judged. Any floating dtype, which says
// how exact they can be; dx: x's number of elements; dgamma, dbeta: gamma's.
struct Claim {
  Tensor dx, dgamma, dbeta;
};

struct Finding {
  std::string tensor;  // "dx", "dgamma", "dbeta"
  Slip slip = Slip::none;
  std::vector<Slip> also;  // others that give the same gradient on this input
  std::string text;        // in words, of all of them
  double error = 0;        // the largest difference from the right gradient
  bool summed = false;     // error is that of the sums over the batch, which the claim lacks
  double scale = 0;        // the largest magnitude of its terms
  std::vector<std::string>
      terms;                    // of dx: the formula's terms, and the factors with which they fit
  std::vector<double> factors;  // the claimed gradient best; empty where they cannot be told
  double residual = 0;          // what the fit leaves
};

struct Diagnosis {
  std::vector<Finding> findings;     // one per claimed tensor
  std::vector<Slip> blind;           // slips that would not show on this input, but on the proposal
  std::vector<std::string> reasons;  // why
  Inputs proposal;                   // an input that shows them; x is undefined where none is blind

  bool right() const;  // as far as this input can tell
  bool has_power() const { return blind.empty(); }
  std::string text() const;  // a line or more per finding, then what the input hides
};

// Throws invalid_argument for tensors that do not fit and where nothing is claimed. gamma and beta
// that are not given are 1 and 0. `tolerance`: what a gradient may be off, as a share of `scale`; 0
// takes what the claim's dtype allows (f64 1e-7, f32 2e-5, else 4e-3).
Diagnosis diagnose(const Setting& setting, const Inputs& inputs, const Claim& claim,
                   double tolerance = 0);

// The same of a function, on inputs with power that are drawn for it.
using Backward = std::function<Claim(const Inputs&)>;
Diagnosis diagnose(const Setting& setting, const Backward& backward, uint64_t seed = 0);

}  // namespace gradus::explain
