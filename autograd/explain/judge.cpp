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

// Collects what a claim could be. A name needs evidence: with so few or so coarse values that one
// of the candidates would fit by accident, the input cannot tell.
class Verdict {
 public:
  explicit Verdict(size_t candidates) : needed_(10 + std::log2(static_cast<double>(candidates))) {}

  void offer(Slip slip, const std::string& text, double bits, bool fitted = false) {
    const auto same = [&](const Match& match) { return match.text == text; };
    if ((bits > 0 || fitted) && std::ranges::none_of(matches_, same))
      matches_.push_back({slip, text, bits, fitted});
  }
  // What is as good as something that has a name is said beside it, whatever its own evidence.
  void offer_as_good(Slip slip, const std::string& text, double bits, bool fitted) {
    if (named())
      offer(slip, text, needed_ / 2, true);
    else
      offer(slip, text, bits, fitted);
  }

  bool has(Slip slip) const {
    return std::ranges::any_of(matches_, [&](const Match& match) { return match.slip == slip; });
  }

  // Whether something fits as it is, with however little evidence.
  bool has_plain() const {
    return std::ranges::any_of(matches_, [](const Match& match) { return !match.fitted; });
  }

  bool named() const {
    return std::ranges::any_of(matches_, [&](const Match& match) { return tells(match); });
  }

  // Whether there is anything to say. The slip is the first one's that tells, or cannot_tell; the
  // texts are of all that do, or hardly less.
  bool settle(Finding& finding) const {
    finding.slip = matches_.empty() ? Slip::unknown : Slip::cannot_tell;
    if (matches_.empty()) finding.text = "none of the usual slips gives it";
    finding.fitted = true;
    for (const bool first : {true, false}) {
      for (const Match& match : matches_) {
        if (tells(match) != first || (named() && 2 * match.bits < needed_)) continue;
        finding.text += (finding.text.empty() ? "" : "; or: ") + match.text;
        if (named() && finding.slip == Slip::cannot_tell) {
          finding.slip = match.slip;
        } else if (match.slip != finding.slip) {
          finding.also.push_back(match.slip);
        }
        finding.fitted = finding.fitted && (match.fitted || !tells(match));
      }
    }
    return !matches_.empty();
  }

 private:
  struct Match {
    Slip slip;
    std::string text;
    double bits;
    bool fitted;
  };
  bool tells(const Match& match) const { return match.bits >= needed_; }

  std::vector<Match> matches_;
  double needed_;
};

// The factors with which the terms fit the claim best; empty where they cannot be told.
Values fitted(const std::vector<Term>& terms, const Claimed& claimed) {
  std::vector<Values> columns;
  for (const Term& term : terms) columns.push_back(values_of(term.values));
  return fit_terms(pointers_to(columns), claimed.values(), claimed.weights()).factors;
}

// A term is missing: what the candidates say better than a reading of the factors.
bool is_missing(Slip slip) {
  return slip == Slip::direct_missing || slip == Slip::mean_missing ||
         slip == Slip::projection_missing;
}

bool is_near_one(double factor) { return std::abs(factor - 1) < 0.05; }

// Another formula with a plain mistake in its factors on top; with a fitted number on top almost
// any formula could be another.
void try_two_slips(Verdict& verdict, const std::vector<Candidate>& candidates,
                   const Claimed& claimed, const Problem& p) {
  constexpr double kPairs = 4;  // bits, for all that are tried
  for (size_t k = 1; k < candidates.size() && !verdict.named(); ++k) {
    const std::vector<Term>& terms = candidates[k].terms;
    const auto offer = [&](const FactorSlip& more) {
      if (more.slip == Slip::unknown || more.fitted) return;
      verdict.offer(candidates[k].slip, candidates[k].text + "; and " + more.text,
                    more.bits - kPairs, true);
    };
    if (const FactorSlip all = read_scale(p, sum_of(terms), claimed); all.slip == Slip::wrong_sign)
      offer(all);
    const Values factors = fitted(terms, claimed);
    const bool like_right = terms.size() == candidates.front().terms.size() && terms.size() > 1;
    if (!like_right || factors.empty()) continue;
    // One of its factors is wrong, and the others are not; or those of all sums are, alike.
    const auto near = std::ranges::count_if(factors, is_near_one);
    const bool sums = is_near_one(factors.front()) && is_near_one(factors[1] / factors.back());
    if (near + 1 == std::ssize(factors) || (near == 1 && sums))
      offer(read_factors(p, candidates[k], factors, claimed));
  }
}

// Where it is not finite.
std::string not_finite_text(const Claimed& claimed, std::string_view group) {
  const int64_t bad = claimed.groups_left_out(), all = claimed.groups().count;
  size_t first = 0;
  while (std::isfinite(claimed.values()[first])) ++first;
  return concat("it holds ", std::isnan(claimed.values()[first]) ? "NaN" : "an infinity",
                ", first at element ", first, ", in ", bad, " of ", all, " ", group);
}

// What is left of a claim that is not finite everywhere.
Finding without_groups(Finding finding, const Claimed& claimed, std::string_view group) {
  std::string text = not_finite_text(claimed, group);
  if (claimed.groups_left_out() < claimed.groups().count) {
    text += finding.slip == Slip::none
                ? "; the others are right"
                : concat("; in the others ", to_string(finding.slip), ": ", finding.text);
  }
  finding.also.clear();
  if (finding.slip != Slip::none) finding.also.push_back(finding.slip);
  finding.slip = Slip::not_finite;
  finding.text = std::move(text);
  finding.factors.clear();
  return finding;
}

void offer_candidates(Verdict& verdict, const std::vector<Candidate>& candidates,
                      const Claimed& claimed) {
  for (const Candidate& candidate : candidates) {
    const Numbers gradient = sum_of(candidate.terms);
    if (candidate.slip != Slip::none && claimed.agrees(gradient))
      verdict.offer(candidate.slip, candidate.text, spare(claimed.bits(gradient)));
  }
}

// A plain multiple is as good as a formula that gives one here, and so is an eps, which is
// returned; one without evidence is left to offer_statistics().
FoundStatistics offer_multiples(Verdict& verdict, const Problem& p, const Claimed& claimed,
                                const Numbers& right) {
  const FactorSlip scale = read_scale(p, right, claimed);
  const bool by_formula = verdict.named();
  if (scale.slip != Slip::unknown)
    verdict.offer_as_good(scale.slip, scale.text, scale.bits, scale.fitted);
  if (by_formula) return {};
  FoundStatistics eps = explaining_eps(p, claimed, right);
  if (!eps.text.empty() && (eps.bits > 0 || verdict.named()))
    verdict.offer_as_good(eps.slip, eps.text, eps.bits, true);
  return eps;
}

// What the factors of the terms say, unless something else says it better.
void offer_factors(Verdict& verdict, const FactorSlip& factors) {
  if (factors.slip == Slip::unknown || factors.slip == Slip::wrong_coefficients) return;
  const bool said = is_missing(factors.slip) && verdict.has(factors.slip);
  if (!said && !(verdict.named() && factors.fitted))
    verdict.offer(factors.slip, factors.text, factors.bits, factors.fitted);
}

// Statistics that were fitted set by set, which are returned if they are what is wrong, and the eps
// that was found before.
FoundStatistics offer_statistics(Verdict& verdict, const Problem& p, const Claimed& claimed,
                                 const Numbers& right, const FoundStatistics& eps) {
  FoundStatistics found = explaining_statistics(p, claimed, right);
  if (!found.text.empty()) verdict.offer(found.slip, found.text, found.bits, true);
  if (!verdict.named()) found = {};
  if (!eps.text.empty()) verdict.offer_as_good(eps.slip, eps.text, eps.bits, true);
  return found;
}

// From what needs the least to be fitted to what needs the most.
void judge_terms(Finding& finding, const Problem& p, const std::vector<Candidate>& candidates,
                 const Claimed& claimed, FoundStatistics& statistics) {
  const Numbers right = sum_of(candidates.front().terms);
  Verdict verdict(candidates.size());
  offer_candidates(verdict, candidates, claimed);
  const FoundStatistics eps = offer_multiples(verdict, p, claimed, right);
  if (verdict.named()) statistics = eps;
  FactorSlip factors;
  if (!finding.factors.empty())
    factors = read_factors(p, candidates.front(), finding.factors, claimed);
  offer_factors(verdict, factors);
  if (!verdict.has_plain()) try_two_slips(verdict, candidates, claimed, p);
  if (!verdict.named()) statistics = offer_statistics(verdict, p, claimed, right, eps);
  if (!verdict.named() && factors.slip == Slip::wrong_coefficients)
    verdict.offer(factors.slip, factors.text, factors.bits, true);
  if (verdict.settle(finding)) return;
  const std::string where = where_text(claimed, "sets");
  finding.text += where.empty() ? unknown_text(p, claimed) : where;
}

// Whether the input leaves anything of a gradient: else it is neither right nor wrong.
void mark_hidden(Finding& finding, const Claimed& claimed, const Values& scale) {
  const Claimed::Power power = claimed.power(scale);
  finding.hidden = power.hidden;
  if (finding.slip != Slip::none || power.hidden == 0 || power.judged > 0) return;
  finding.slip = Slip::cannot_tell;
  finding.right_or_not = true;
}

void measure(Finding& finding, const Claimed& claimed, const Values& right) {
  finding.error = 0;
  for (size_t i = 0; i < right.size(); ++i) {
    const double difference = std::abs(claimed.values()[i] - right[i]);
    if (std::isfinite(claimed.values()[i])) finding.error = std::max(finding.error, difference);
  }
  finding.share = claimed.worst_share();
}

Groups groups_of(const Problem& p) {
  const Setting& o = p.setting;
  const bool independent = o.is_evaluation() || o.layer == Layer::local_response_norm;
  Groups groups{p.layout.set, p.layout.sets, independent ? 0 : o.has_mean() ? 2 : 1};
  if (!o.is_norm()) return groups;
  groups.parts = {product(p.dy, p.gamma), Numbers(p.x.size(), 1.0),
                  normalized(p, statistics_candidates(p)[0].statistics)};
  return groups;
}

}  // namespace

Finding judge_dx(const Problem& p, const std::vector<Candidate>& candidates, const Values& library,
                 const Values& claims, FoundStatistics& statistics) {
  const std::vector<Term>& terms = candidates.front().terms;
  Finding finding{.tensor = "dx"};
  Numbers right = sum_of(terms);
  for (size_t i = 0; i < right.size(); ++i) right[i].value = library[i];
  const Claimed claimed(claims, std::move(right), groups_of(p));
  const Values scale = each(claims.size(), [&](size_t i) {
    double most = 0;
    for (const Term& term : terms) most = std::max(most, std::abs(term.values[i].value));
    return most;
  });
  finding.scale = largest(scale);
  measure(finding, claimed, library);
  for (const Term& term : terms) finding.terms.push_back(term.name);
  finding.factors = fitted(terms, claimed);
  if (!finding.factors.empty()) {
    const Values sums = values_of(combined(terms, finding.factors));
    finding.residual = largest_difference(sums, claims);
  }
  if (!claimed.is_right()) judge_terms(finding, p, candidates, claimed, statistics);
  mark_hidden(finding, claimed, scale);
  if (claimed.groups_left_out() > 0) return without_groups(std::move(finding), claimed, "sets");
  return finding;
}

namespace {

// One value per sample and gamma: what they add up to.
Finding judge_not_summed(Finding finding, const Problem& p, const Numbers& right,
                         const Values& claims) {
  if (!is_finite(claims)) {
    finding.slip = Slip::not_finite;
    finding.text = "it holds an infinity or NaN";
    return finding;
  }
  Values sums(right.size());
  for (size_t i = 0; i < claims.size(); ++i) sums[i % sums.size()] += claims[i];
  bool fits = true;
  for (size_t k = 0; k < sums.size(); ++k)
    fits = fits && std::abs(sums[k] - right[k].value) <= allowance(right[k]);
  finding.error = largest_difference(sums, values_of(right));
  finding.slip = Slip::batch_sum_forgotten;
  finding.summed = true;
  const bool rows = p.setting.is_row_norm();
  finding.text = concat("it has one value per ", rows ? "row" : "sample",
                        ": it must be summed over the ", rows ? "rows" : "batch",
                        fits ? "; that sum is right" : ", and that sum is not right either");
  return finding;
}

void judge_entries(Finding& finding, const Problem& p, const std::vector<SumCandidate>& candidates,
                   const Claimed& claimed) {
  Verdict verdict(candidates.size());
  for (size_t k = 1; k < candidates.size(); ++k) {
    if (claimed.agrees(candidates[k].values))
      verdict.offer(candidates[k].slip, candidates[k].text,
                    spare(claimed.bits(candidates[k].values)));
  }
  const FactorSlip scale = read_scale(p, candidates.front().values, claimed);
  if (scale.slip != Slip::unknown && !(verdict.named() && scale.bits <= 0)) {
    const bool mean = scale.text.ends_with("1/n"), turned = scale.slip == Slip::wrong_sign;
    const std::string sum = ": it is a plain sum over all elements that share the parameter";
    if (!verdict.has(Slip::batch_mean) && !verdict.has(Slip::wrong_count))
      verdict.offer(mean ? Slip::batch_mean : scale.slip, scale.text + (turned ? "" : sum),
                    scale.bits, scale.fitted);
  }
  for (size_t k = 1; k < candidates.size() && !verdict.named(); ++k) {
    const FactorSlip more = read_scale(p, candidates[k].values, claimed);
    if (more.slip != Slip::unknown && !more.fitted)
      verdict.offer(candidates[k].slip, candidates[k].text + "; and " + more.text, more.bits - 2,
                    true);
  }
  if (!verdict.settle(finding)) finding.text += where_text(claimed, "entries");
}

}  // namespace

Finding judge_sum(const Problem& p, std::string name, const std::vector<SumCandidate>& candidates,
                  const Values& claims) {
  const Numbers& right = candidates.front().values;
  Finding finding{.tensor = std::move(name)};
  Values scale = each(right.size(), [&](size_t k) { return std::abs(right[k].value); });
  for (size_t i = 0; i < p.dy.size(); ++i) {
    double& most = scale[at(p.layout.param, i)];
    most = std::max(most, std::abs(p.dy[i].value));
  }
  finding.scale = largest(scale);
  if (claims.size() != right.size()) return judge_not_summed(std::move(finding), p, right, claims);
  Groups entries{.count = std::ssize(right)};
  for (int64_t k = 0; k < entries.count; ++k) entries.of.push_back(k);
  const Claimed claimed(claims, right, std::move(entries));
  measure(finding, claimed, values_of(right));
  if (!claimed.is_right()) judge_entries(finding, p, candidates, claimed);
  mark_hidden(finding, claimed, scale);
  if (claimed.groups_left_out() > 0) return without_groups(std::move(finding), claimed, "entries");
  return finding;
}

namespace {

bool differ(const Numbers& gradient, const Numbers& right) {
  for (size_t i = 0; i < right.size(); ++i) {
    const double allowed = allowance(gradient[i]) + allowance(right[i]);
    const double distance = std::abs(gradient[i].value - right[i].value);
    if (std::isfinite(allowance(right[i])) && !(distance <= allowed)) return true;
  }
  return false;
}

}  // namespace

void add_visible(std::set<Slip>& visible, const Zoo& zoo, std::string_view tensor) {
  if (tensor == "dx") {
    const Numbers right = sum_of(zoo.dx.front().terms);
    for (const Candidate& one : zoo.dx)
      if (!visible.contains(one.slip) && differ(sum_of(one.terms), right)) visible.insert(one.slip);
    return;
  }
  const std::vector<SumCandidate>& candidates = tensor == "dgamma" ? zoo.dgamma : zoo.dbeta;
  for (const SumCandidate& one : candidates)
    if (differ(one.values, candidates.front().values)) visible.insert(one.slip);
}

}  // namespace gradus::explain
