#include "autograd/explain/diagnosis.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "autograd/explain/judge.h"
#include "autograd/explain/library.h"
#include "core/error.h"

namespace gradus::explain {

std::string_view to_string(Slip slip) {
  constexpr std::array names = {"right",
                                "not_finite",
                                "direct_missing",
                                "mean_missing",
                                "mean_extra",
                                "projection_missing",
                                "evaluation_formula",
                                "training_formula",
                                "wrong_sign",
                                "wrong_count",
                                "wrong_scale",
                                "wrong_coefficients",
                                "rstd_missing",
                                "rstd_extra",
                                "gamma_outside",
                                "gamma_not_in_sums",
                                "gamma_missing",
                                "gamma_twice",
                                "unbiased_variance",
                                "eps_missing",
                                "other_eps",
                                "eps_outside_root",
                                "stale_statistics",
                                "wrong_set",
                                "other_layer",
                                "batch_sum_forgotten",
                                "batch_mean",
                                "x_for_xhat",
                                "gamma_in_dgamma",
                                "swapped",
                                "window_not_mirrored",
                                "window_on_other_side",
                                "alpha_undivided",
                                "alpha_by_channels_in_range",
                                "neighbours_missing",
                                "wrong_power",
                                "border_repeated",
                                "sum_missing",
                                "sum_unweighted",
                                "y_missing",
                                "y_on_one_term",
                                "log_form",
                                "last_left_out",
                                "unknown"};
  static_assert(names.size() == static_cast<size_t>(Slip::unknown) + 1);
  return names[static_cast<size_t>(slip)];
}

namespace {

double tolerance_of(const Claim& claim) {
  double tolerance = 0;
  for (const Tensor& tensor : {claim.dx, claim.dgamma, claim.dbeta}) {
    if (!tensor.defined()) continue;
    const double own = tensor.dtype() == DType::f64   ? 1e-7
                       : tensor.dtype() == DType::f32 ? 2e-5
                                                      : 4e-3;
    tolerance = std::max(tolerance, own);
  }
  return tolerance;
}

void check_claim(const Setting& setting, std::string_view name, const Tensor& tensor,
                 std::initializer_list<int64_t> counts) {
  if (!tensor.defined()) return;
  const bool fits = std::ranges::find(counts, tensor.numel()) != counts.end();
  check(is_floating(tensor.dtype()) && fits, to_string(setting.layer), "the claimed ", name,
        " must have ", *counts.begin(), " floating values, got ", tensor);
}

// Nothing can be told from what is not finite, or from a gradient that is not.
void check_finite(const Setting& setting, std::string_view what, const Tensor& tensor) {
  check(!tensor.defined() || is_finite(tensor.to_vector<double>()), to_string(setting.layer), what,
        " holds infinities or NaN, from which nothing can be told");
}

Inputs with_defaults(const Setting& setting, Inputs inputs) {
  const Layout layout = layout_of(setting, inputs.x.shape());
  const TensorOptions f64{.dtype = DType::f64};
  if (layout.params > 0) {
    if (!inputs.gamma.defined()) inputs.gamma = Tensor::ones(layout.per_param, f64);
    if (!inputs.beta.defined() && setting.layer != Layer::rms_norm)
      inputs.beta = Tensor::zeros(layout.per_param, f64);
  }
  check(!setting.is_evaluation() || (inputs.running_mean.defined() && inputs.running_var.defined()),
        to_string(setting.layer), "evaluation needs running_mean and running_var");
  return complete(setting, std::move(inputs), 0);
}

// The shape, enlarged where it hides something: one sample, small sets, one channel.
Shape telling_shape(const Setting& setting, Shape x) {
  const int last = x.rank() - 1;
  if (setting.is_row_norm()) {
    if (layout_of(setting, x).m < 4) x[last] = 5;
    if (layout_of(setting, x).samples < 3) x[0] = 3;
    return x;
  }
  x[0] = std::max<int64_t>(x[0], 3);
  if (setting.layer == Layer::group_norm) {
    x[1] = std::max(x[1], 2 * setting.groups);
  } else {
    x[1] =
        std::max<int64_t>(x[1], setting.layer == Layer::local_response_norm ? setting.size + 2 : 3);
  }
  if (x.rank() == 2) x.append(4);
  if (layout_of(setting, x).m < 4) x[x.rank() - 1] = 4;
  return x;
}

bool is_constant(const Tensor& tensor) {
  if (!tensor.defined()) return false;
  const Values values = tensor.to_vector<double>();
  return std::ranges::all_of(values, [&](double value) { return value == values[0]; });
}

std::vector<std::string> reasons_for(const Setting& setting, const Inputs& in) {
  const Layout layout = layout_of(setting, in.x.shape());
  std::vector<std::string> reasons;
  if (is_constant(in.dy)) {
    reasons.push_back("dy is the same everywhere: the terms of dx cancel, whatever their mistakes");
  }
  if (layout.params > 0 && is_constant(in.gamma)) {
    reasons.push_back(layout.params == 1 ? "there is one gamma"
                                         : "gamma is the same everywhere: where it stands does not "
                                           "show, and at 1 not even whether it is there");
  }
  if (layout.samples == 1)
    reasons.push_back(
        "there is a single sample: neither a forgotten sum over the batch nor statistics of "
        "another "
        "one show");
  if (layout.m == 1) reasons.push_back("a set has one element: xhat and dx are 0");
  if (is_constant(in.x)) reasons.push_back("x is the same everywhere: xhat is 0");
  if (reasons.empty()) reasons.push_back("its values happen to hide them");
  return reasons;
}

void find_blind_spots(Diagnosis& out, const Problem& problem, const Zoo& zoo, const Inputs& inputs,
                      const Claim& claim, double tolerance) {
  const Setting& setting = problem.setting;
  const Inputs proposal = draw_inputs(setting, telling_shape(setting, inputs.x.shape()), 1);
  const Problem other = problem_of(setting, proposal);
  const auto here = visible_slips(problem, zoo, claim, tolerance);
  for (const auto& [slip, visible] : visible_slips(other, zoo_of(other), claim, tolerance)) {
    const auto found = here.find(slip);
    if (visible && (found == here.end() || !found->second)) out.blind.push_back(slip);
  }
  if (out.blind.empty()) return;
  out.proposal = proposal;
  out.reasons = reasons_for(setting, inputs);
}

void check_claims(const Problem& problem, const Inputs& inputs, const Claim& claim) {
  const Layout& layout = problem.layout;
  const Setting& setting = problem.setting;
  check(claim.dx.defined() || claim.dgamma.defined() || claim.dbeta.defined(),
        to_string(setting.layer), "nothing is claimed: there is no dx, dgamma or dbeta");
  check(inputs.gamma.defined() || !claim.dgamma.defined(), to_string(setting.layer),
        "has no gamma");
  check(inputs.beta.defined() || !claim.dbeta.defined(), to_string(setting.layer), "has no beta");
  check_claim(setting, "dx", claim.dx, {inputs.x.numel()});
  const Tensor& dx = claim.dx;
  check(!dx.defined() || dx.shape().rank() == 1 || dx.shape() == inputs.x.shape(),
        to_string(setting.layer), "the claimed dx must have the shape of x, ", inputs.x.shape(),
        ", got ", dx);
  check_claim(setting, "dgamma", claim.dgamma, {layout.params, layout.samples * layout.params});
  check_claim(setting, "dbeta", claim.dbeta, {layout.params, layout.samples * layout.params});
}

// What the fit of a dx that no slip gives suggests.
std::string suggestion(const Finding& one) {
  std::string missing;
  for (size_t t = 0; t < one.factors.size(); ++t) {
    const bool none = std::abs(one.factors[t]) < 0.01;
    if (!none && std::abs(one.factors[t] - 1) > 0.05) return "";
    if (none) missing += (missing.empty() ? "the " : " and the ") + one.terms[t];
  }
  if (missing.empty()) return "  All terms seem to be there: what is wrong is small.\n";
  const std::string rest = one.terms.back() == "projection" ? "rstd" : "something in the rest";
  return "  It looks as if " + missing + " term were missing, and " + rest +
         " were slightly off.\n";
}

std::string fit_text(const Finding& one) {
  std::string out = "  Best fit:";
  for (size_t t = 0; t < one.factors.size(); ++t) {
    const double factor = std::abs(one.factors[t]) < 5e-5 ? 0 : one.factors[t];
    out += fmt::format("{}{:.4f}·{}",
                       t == 0       ? (factor < 0 ? " -" : " ")
                       : factor < 0 ? " - "
                                    : " + ",
                       std::abs(factor), one.terms[t]);
  }
  out += fmt::format("; leaves {:.1e}.\n", one.residual);
  return one.slip == Slip::unknown ? out + suggestion(one) : out;
}

}  // namespace

Diagnosis diagnose(const Setting& setting, const Inputs& given, const Claim& claim,
                   double tolerance) {
  check(given.x.defined() && given.dy.defined(), to_string(setting.layer),
        "a diagnosis needs x and dy");
  const Inputs inputs = with_defaults(setting, given);
  check_finite(setting, "x", inputs.x);
  check_finite(setting, "dy", inputs.dy);
  const Library library = run_library(setting, inputs);
  for (const Tensor& gradient : {library.dx, library.dgamma, library.dbeta})
    check_finite(setting, "the right gradient", gradient);
  const Problem problem = problem_of(setting, inputs);
  check_claims(problem, inputs, claim);
  if (tolerance == 0) tolerance = tolerance_of(claim);
  Zoo zoo = zoo_of(problem);
  Diagnosis out;
  if (claim.dx.defined()) {
    FoundStatistics found;
    out.findings.push_back(judge_dx(problem, zoo.dx, library.dx.to_vector<double>(),
                                    claim.dx.to_vector<double>(), tolerance, found));
    if (!found.text.empty()) {
      zoo.dgamma.push_back(
          {found.slip, "with the statistics of that dx", dgamma_with(problem, found.statistics)});
    }
  }
  if (claim.dgamma.defined())
    out.findings.push_back(
        judge_sum(problem, "dgamma", zoo.dgamma, claim.dgamma.to_vector<double>(), tolerance));
  if (claim.dbeta.defined())
    out.findings.push_back(
        judge_sum(problem, "dbeta", zoo.dbeta, claim.dbeta.to_vector<double>(), tolerance));
  find_blind_spots(out, problem, zoo, inputs, claim, tolerance);
  return out;
}

Diagnosis diagnose(const Setting& setting, const Backward& backward, uint64_t seed) {
  const Shape shape = telling_shape(setting, default_shape(setting));
  Diagnosis out;
  for (const uint64_t draw : {seed, seed + 1}) {
    const Inputs inputs = draw_inputs(setting, shape, draw);
    out = diagnose(setting, inputs, backward(inputs));
    if (!out.right()) break;
  }
  return out;
}

bool Diagnosis::right() const {
  return std::ranges::all_of(findings, [](const Finding& one) { return one.slip == Slip::none; });
}

std::string Diagnosis::text() const {
  std::string out;
  for (const Finding& one : findings) {
    if (one.slip == Slip::none) {
      out += fmt::format("{}: right. Largest difference {:.1e}, of terms up to {:.4g}.\n",
                         one.tensor, one.error, one.scale);
      continue;
    }
    out += fmt::format("{}: WRONG, {}: {}.\n  {} {:.4g}, of terms up to {:.4g}.\n", one.tensor,
                       to_string(one.slip), one.text,
                       one.summed ? "Summed, its largest difference is" : "Largest difference",
                       one.error, one.scale);
    if (one.factors.size() < 2 || one.residual > 1e-3 * one.scale) continue;  // says nothing
    out += fit_text(one);
  }
  if (has_power() || !right()) return out;
  out += "This input cannot tell";
  for (size_t i = 0; i < blind.size(); ++i)
    out += fmt::format("{}{}", i == 0 ? " " : ", ", to_string(blind[i]));
  out += ":\n";
  for (const std::string& reason : reasons) out += "- " + reason + "\n";
  return out + fmt::format("Try an x of shape {} with gamma and dy that vary.\n",
                           gradus::to_string(proposal.x.shape()));
}

}  // namespace gradus::explain
