// What is wrong with a backward of a normalization, in words: the claimed gradients are compared
// with those of a list of usual slips, and their error is fitted on the terms of the formula.
//
//   const Setting setting{.layer = Layer::rms_norm};
//   const Diagnosis d = diagnose(setting, [](const Inputs& in) -> Claim { return mine(in); });
//   std::puts(d.text().c_str());  // "dx: WRONG, gamma_outside: gamma was pulled ..."
//
// An input may hide slips (an upstream of ones, a constant gamma, a single sample), as may a dtype:
// the diagnosis says which and why, and proposes an input that shows them where one does.
//
// Each value of a gradient has its own bound of what it may be off, computed from the given tensors
// by what every step of the formula rounds in the claim's dtype, in the worst case and to first
// order: unit roundoff times the result, added to what its operands bring along; for a sum of m
// values min(m, 8 + sqrt(m)) times their magnitudes; inputs once, where the dtype does not hold
// them; infinite beyond the largest number. Twice that, and the rounding of the result. So a
// channel with a large gamma hides nothing in its neighbours, a dgamma in f16 does not excuse a dx
// in f64, and what f32 loses of an x far from 0 is no slip. f16 and bf16 are first taken to have
// added up in f32, and f64 to be exact; where that neither makes them right nor gives them a name,
// they are judged by f16 or bf16 throughout, or by f32, and any claim by the dtype of its inputs.
//
// A name needs evidence. In each value the claim's distance from the right one is so many times the
// bound of the wrong one that fits, which is log2 of it in bits; of values that follow from others
// only one counts; numbers that were fitted (a factor, an eps) take the largest away. 10 bits must
// be left, and log2 of the candidates that were tried. Else the slip is cannot_tell: so few values
// could be a multiple of anything.
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
  wrong_root,  // rstd without its root, or the root without one over it
  stale_statistics,
  wrong_set,    // sums or statistics over other elements
  other_layer,  // the formula of another layer, with its statistics
  // dgamma and dbeta
  batch_sum_forgotten,  // of one element or some samples only, or one value per sample
  batch_mean,           // divided by the number of samples
  x_for_xhat,           // in dx: in the projection
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

  unknown,     // nothing fits
  cannot_tell  // the input has too few or too coarse values for a name, or for a verdict
};
std::string_view to_string(Slip slip);

// What a learner's backward gives; undefined tensors are not judged. Any floating dtype, which says
// how exact they can be; dx: x's number of elements; dgamma, dbeta: gamma's.
struct Claim {
  Tensor dx, dgamma, dbeta;
  DType inputs = DType::f64;  // the coarsest dtype of what it was computed from
};

struct Finding {
  std::string tensor;  // "dx", "dgamma", "dbeta"
  Slip slip = Slip::none;
  std::vector<Slip> also;  // others that give the same gradient on this input; of not_finite: what
                           // is wrong where it is finite
  std::string text;        // in words, of all of them
  double error = 0;        // the largest difference from the right gradient
  double share = 0;        // the largest difference by its bound; right: 1 at most
  DType exact_to = DType::f64;  // the coarsest dtype by which it was judged
  bool coarse = false;          // that is coarser than what its own dtype asks for first
  int64_t hidden = 0;           // sets (entries of dgamma) of which rounding leaves nothing
  bool fitted = false;          // the name rests on a number that was fitted
  bool right_or_not = false;    // cannot_tell: not even whether it is right
  bool summed = false;          // error is that of the sums over the batch, which the claim lacks
  double scale = 0;             // the largest magnitude of its terms
  std::vector<std::string>
      terms;                    // of dx: the formula's terms, and the factors with which they fit
  std::vector<double> factors;  // the claimed gradient best; empty where they cannot be told
  double residual = 0;          // what the fit leaves
};

struct Diagnosis {
  std::vector<Finding> findings;     // one per claimed tensor
  std::vector<Slip> blind;           // slips that would not show on this input, but on the proposal
  std::vector<Slip> rounded_away;    // that rounding hides on both; f64 shows them there
  std::vector<std::string> reasons;  // why, or why there is no name
  Inputs proposal;                   // an input that shows more; x is undefined where none would

  bool right() const;  // as far as this input can tell
  bool has_power() const { return blind.empty(); }
  bool is_named() const;     // nothing is cannot_tell
  std::string text() const;  // a line or more per finding, then what the input hides
};

// Throws invalid_argument for tensors that do not fit, hold infinities or NaN, or have more than
// kMostElements, and where nothing is claimed. gamma and beta that are not given are 1 and 0.
inline constexpr int64_t kMostElements = 1 << 18;
Diagnosis diagnose(const Setting& setting, const Inputs& inputs, const Claim& claim);

// The same of a function, on inputs with power that are drawn for it.
using Backward = std::function<Claim(const Inputs&)>;
Diagnosis diagnose(const Setting& setting, const Backward& backward, uint64_t seed = 0);

}  // namespace gradus::explain
