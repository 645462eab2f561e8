#include "autograd/explain/judge.h"

#include <algorithm>
#include <cmath>

#include "autograd/explain/factors.h"
#include "autograd/explain/fit.h"
#include "core/error.h"

namespace gradus::explain {

double largest(const Values& values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

bool is_finite(const Values& values) {
  return std::ranges::all_of(values, [](double value) { return std::isfinite(value); });
}

namespace {

std::vector<const Values*> columns_of(const std::vector<Term>& terms) {
  std::vector<const Values*> columns;
  for (const Term& term : terms) columns.push_back(&term.values);
  return columns;
}

// The texts of all that fit; the slip is the first one's.
void adopt(Finding& finding, Slip slip, const std::string& text) {
  if (finding.text.empty()) {
    finding.slip = slip;
    finding.text = text;
  } else if (finding.text.find(text) == std::string::npos) {
    finding.text += "; or: " + text;
    if (slip != finding.slip) finding.also.push_back(slip);
  }
}

// Another formula with a plain mistake in its factors on top.
void try_two_slips(Finding& finding, const std::vector<Candidate>& candidates,
                   const Values& claimed, const Problem& p, double allowed) {
  const size_t count = candidates.front().terms.size();
  for (size_t k = 1; k < candidates.size(); ++k) {
    if (candidates[k].terms.size() != count || count < 2) continue;
    const Fit found = fit(columns_of(candidates[k].terms), claimed);
    if (found.factors.empty() || found.residual > allowed) continue;
    const FactorSlip slip = read_factors(p, candidates[k].terms, found.factors, claimed, allowed);
    if (slip.slip != Slip::unknown && slip.slip != Slip::wrong_coefficients)
      return adopt(finding, candidates[k].slip, candidates[k].text + "; and " + slip.text);
  }
}

}  // namespace

Finding judge_dx(const Problem& p, const std::vector<Candidate>& candidates, const Values& right,
                 const Values& claimed, double tolerance, FoundStatistics& statistics) {
  const std::vector<Term>& terms = candidates.front().terms;
  Finding finding{.tensor = "dx"};
  for (const Term& term : terms) finding.scale = std::max(finding.scale, largest(term.values));
  const double allowed = tolerance * finding.scale;
  finding.error = largest_difference(claimed, right);
  if (!is_finite(claimed)) {
    finding.slip = Slip::not_finite;
    finding.text = "it holds an infinity or NaN";
    return finding;
  }
  const Fit found = fit(columns_of(terms), claimed);
  for (const Term& term : terms) finding.terms.push_back(term.name);
  finding.factors = found.factors;
  finding.residual = found.residual;
  if (finding.error <= allowed) return finding;
  for (const Candidate& candidate : candidates) {
    if (candidate.slip != Slip::none &&
        largest_difference(sum_of(candidate.terms), claimed) <= allowed)
      adopt(finding, candidate.slip, candidate.text);
  }
  if (finding.text.empty() && !found.factors.empty() && found.residual <= allowed) {
    const FactorSlip slip = read_factors(p, terms, found.factors, claimed, allowed);
    if (slip.slip != Slip::wrong_coefficients) adopt(finding, slip.slip, slip.text);
  }
  if (finding.text.empty()) try_two_slips(finding, candidates, claimed, p, allowed);
  if (finding.text.empty()) {
    statistics = explaining_statistics(p, claimed, allowed);
    if (!statistics.text.empty()) adopt(finding, statistics.slip, statistics.text);
  }
  if (finding.text.empty() && !found.factors.empty() && found.residual <= allowed) {
    const FactorSlip slip = read_factors(p, terms, found.factors, claimed, allowed);
    adopt(finding, slip.slip, slip.text);
  }
  if (finding.text.empty()) {
    adopt(finding, Slip::unknown,
          "none of the usual slips gives it" + unknown_text(p, claimed, allowed));
  }
  return finding;
}

Finding judge_sum(const Problem& p, std::string name, const std::vector<SumCandidate>& candidates,
                  const Values& claimed, double tolerance) {
  const Values& right = candidates.front().values;
  Finding finding{.tensor = std::move(name)};
  finding.scale = largest(right);
  for (size_t i = 0; i < p.dy.size(); ++i)
    finding.scale = std::max(finding.scale, std::abs(p.dy[i]));
  const double allowed = tolerance * finding.scale;
  if (!is_finite(claimed)) {
    finding.slip = Slip::not_finite;
    finding.text = "it holds an infinity or NaN";
    return finding;
  }
  if (claimed.size() != right.size()) {  // one value per sample: [n, params]
    Values sums(right.size());
    for (size_t i = 0; i < claimed.size(); ++i) sums[i % sums.size()] += claimed[i];
    finding.error = largest_difference(sums, right);
    finding.slip = Slip::batch_sum_forgotten;
    finding.summed = true;
    const std::string what = p.setting.is_row_norm() ? "row" : "sample";
    finding.text = "it has one value per " + what + ": it must be summed over the " +
                   (p.setting.is_row_norm() ? "rows" : "batch");
    finding.text +=
        finding.error > allowed ? ", and that sum is not right either" : "; that sum is right";
    return finding;
  }
  finding.error = largest_difference(claimed, right);
  if (finding.error <= allowed) return finding;
  for (size_t k = 1; k < candidates.size(); ++k) {
    if (largest_difference(candidates[k].values, claimed) <= allowed)
      adopt(finding, candidates[k].slip, candidates[k].text);
  }
  if (!finding.text.empty()) return finding;
  const Fit found = fit({&right}, claimed);
  if (!found.factors.empty() && found.residual <= allowed) {
    const double factor = found.factors[0];
    adopt(finding, std::abs(factor + 1) < 1e-3 ? Slip::wrong_sign : Slip::wrong_scale,
          std::abs(factor + 1) < 1e-3 ? "its sign is turned"
                                      : concat("it is ", rounded_factor(factor),
                                               " times what it should be: it is a plain sum over "
                                               "all elements that share the parameter"));
  } else {
    adopt(finding, Slip::unknown, "none of the usual slips gives it");
  }
  return finding;
}

std::map<Slip, bool> visible_slips(const Problem& p, const Zoo& zoo, const Claim& claim,
                                   double tolerance) {
  std::map<Slip, bool> visible;
  const auto note = [&](Slip slip, const Values& values, const Values& right, double scale) {
    bool& seen = visible[slip];
    seen = seen || !(largest_difference(values, right) <= tolerance * scale);
  };
  if (claim.dx.defined()) {
    double scale = 0;
    for (const Term& term : zoo.dx.front().terms) scale = std::max(scale, largest(term.values));
    const Values right = sum_of(zoo.dx.front().terms);
    for (const Candidate& candidate : zoo.dx)
      note(candidate.slip, sum_of(candidate.terms), right, scale);
  }
  const auto note_all = [&](const std::vector<SumCandidate>& candidates) {
    const double scale = std::max(largest(candidates.front().values), largest(p.dy));
    for (const SumCandidate& candidate : candidates)
      note(candidate.slip, candidate.values, candidates.front().values, scale);
  };
  if (claim.dgamma.defined()) note_all(zoo.dgamma);
  if (claim.dbeta.defined()) note_all(zoo.dbeta);
  return visible;
}

}  // namespace gradus::explain
