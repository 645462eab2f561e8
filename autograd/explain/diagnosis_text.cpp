// What a diagnosis says.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "autograd/explain/diagnosis.h"
#include "autograd/explain/factors.h"

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
                                "wrong_root",
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
                                "unknown",
                                "cannot_tell"};
  static_assert(names.size() == static_cast<size_t>(Slip::cannot_tell) + 1);
  return names[static_cast<size_t>(slip)];
}

namespace {

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

// Whether the fit is more than a coincidence, and not that of the right gradient.
bool fit_tells(const Finding& one) {
  if (one.slip == Slip::none || one.right_or_not || one.factors.size() < 2) return false;
  if (one.slip == Slip::unknown) return one.residual <= 1e-3 * one.scale;
  if (std::ranges::all_of(one.factors, is_one)) return false;
  return one.residual * one.share <= 10 * one.error;  // error / share: what rounding allows
}

std::string verdict_text(const Finding& one) {
  const std::string_view dtype = gradus::to_string(one.exact_to);
  if (one.right_or_not) {
    return fmt::format(
        "{}: CANNOT TELL whether it is right: {}{} may leave so much{}.\n", one.tensor,
        one.coarse ? "it is off by more than fine arithmetic leaves, but " : "rounding to ",
        one.coarse ? fmt::format("{} throughout", dtype) : std::string(dtype),
        one.text.empty() ? "" : "; if it is wrong, it could be: " + one.text);
  }
  if (one.slip == Slip::none) {
    const bool single = one.hidden == 1, limited = one.coarse || size_of(one.exact_to) == 2;
    const std::string_view what =
        one.tensor == "dx" ? (single ? "set" : "sets") : (single ? "entry" : "entries");
    return fmt::format(
        "{}: right{}{}.", one.tensor, limited ? fmt::format(", as far as {} goes", dtype) : "",
        one.hidden > 0
            ? fmt::format(", but for {} {} of which rounding leaves nothing", one.hidden, what)
            : "");
  }
  if (one.slip == Slip::cannot_tell)
    return fmt::format("{}: WRONG, but this input cannot tell how; it could be: {}.\n", one.tensor,
                       one.text);
  return fmt::format("{}: WRONG, {}: {}.\n", one.tensor, to_string(one.slip), one.text);
}

std::string listed(const std::vector<Slip>& slips) {
  std::string out;
  for (const Slip slip : slips)
    out += fmt::format("{}{}", out.empty() ? "" : ", ", to_string(slip));
  return out;
}

std::string size_text(const Finding& one) {
  if (one.slip == Slip::not_finite && one.error == 0) return "";
  const bool right = one.slip == Slip::none;
  const std::string error =
      right ? fmt::format("{:.1e}", one.error) : fmt::format("{:.4g}", one.error);
  std::string share;
  if (right) share = fmt::format(": at most {:.2g}% of what rounding allows", 100 * one.share);
  if (!right && one.share > 1 && one.error < 0.01 * one.scale)  // else nobody thinks of rounding
    share = fmt::format(": up to {:.2g} times what rounding allows", one.share);
  return fmt::format("{} {}, of terms up to {:.4g}{}.\n",
                     right        ? " Largest difference"
                     : one.summed ? "  Summed, its largest difference is"
                                  : "  Largest difference",
                     error, one.scale, share);
}

}  // namespace

bool Diagnosis::right() const {
  return std::ranges::all_of(findings, [](const Finding& one) { return one.slip == Slip::none; });
}

bool Diagnosis::is_named() const {
  return std::ranges::none_of(findings,
                              [](const Finding& one) { return one.slip == Slip::cannot_tell; });
}

std::string Diagnosis::text() const {
  std::string out;
  for (const Finding& one : findings) {
    out += verdict_text(one) + size_text(one);
    if (fit_tells(one)) out += fit_text(one);
  }
  if (right() && !rounded_away.empty())
    out +=
        fmt::format("Rounding hides, here and on inputs like this: {}. A finer dtype shows them.\n",
                    listed(rounded_away));
  if ((has_power() || !right()) && is_named()) return out;
  out += right() && !blind.empty() ? fmt::format("This input cannot tell {}:\n", listed(blind))
                                   : "Why this input cannot tell more:\n";
  for (const std::string& reason : reasons) out += "- " + reason + "\n";
  if (!proposal.x.defined()) return out;
  return out + fmt::format("Try an x of shape {} with gamma and dy that vary.\n",
                           gradus::to_string(proposal.x.shape()));
}

}  // namespace gradus::explain
