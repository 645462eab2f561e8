// Which statistics a claimed gradient was computed with, where they are not its sets' own.
//
// With rho in place of rstd and a mean that is s/rstd above mu, xhat' = k·(xhat - s), k = rho/rstd:
//
//   dx' = rho·(d - m1 - xhat'·mean(d·xhat')) = A·d + B + C·xhat
//   A = rho,  C = -rho·k²·(m2 - s·m1),  B = -rho·m1 - s·C        (rms_norm: B = -s·C)
//
// so that a fit of one set on {d, 1, xhat} gives rho and s, and C says whether that is the reason.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "autograd/explain/factors.h"
#include "autograd/explain/fit.h"
#include "autograd/explain/judge.h"
#include "core/error.h"

namespace gradus::explain {
namespace {

struct SetValues {
  std::vector<size_t> at;  // its elements
  Numbers d, xhat;
  Number rstd, m1, m2;
  Number taken;  // m1, but 0 in rms_norm
};

// What the sets hold.
std::vector<SetValues> sorted_by_set(const Problem& p, const Statistics& own) {
  const Numbers xhat = normalized(p, own), d = product(p.dy, p.gamma);
  const Sets sets = sets_of(p.layout.set);
  const Numbers m1 = mean_over(sets, d), m2 = mean_over(sets, product(d, xhat));
  std::vector<SetValues> sorted(static_cast<size_t>(p.layout.sets));
  for (size_t i = 0; i < d.size(); ++i) {
    SetValues& set = sorted[at(p.layout.set, i)];
    set.at.push_back(i);
    set.d.push_back(d[i]);
    set.xhat.push_back(xhat[i]);
    set.rstd = own.rstd[i];
    set.m1 = m1[i];
    set.m2 = m2[i];
    set.taken = p.setting.has_mean() ? m1[i] : Number();
  }
  return sorted;
}

struct Shifted {
  bool known = false;  // the set is large and varied enough to tell
  Number rho, s;
};

// dx of the set with those statistics.
Numbers shifted_dx(const Problem& p, const SetValues& set, const Shifted& by) {
  if (p.setting.is_evaluation())
    return each(set.d.size(), [&](size_t i) { return by.rho * set.d[i]; });
  const Number k = by.rho * pow(set.rstd, -1);
  const Number m2 = k * (set.m2 - by.s * set.m1);
  return each(set.d.size(), [&](size_t i) {
    return by.rho * (set.d[i] - set.taken - k * (set.xhat[i] - by.s) * m2);
  });
}

// The set's claim as a sum of columns over the set.
Fit fit_set(const SetValues& set, const Claimed& claimed,
            const std::vector<const Values*>& columns) {
  const auto part = [&](const Values& all) {
    return each(set.at.size(), [&](size_t i) { return all[set.at[i]]; });
  };
  return fit(columns, part(claimed.values()), part(claimed.weights()));
}

Shifted solve(const SetValues& set, const Claimed& claimed) {
  const Values d = values_of(set.d), xhat = values_of(set.xhat), ones(d.size(), 1.0);
  const Fit found = fit_set(set, claimed, {&d, &ones, &xhat});
  if (found.factors.empty()) return {};
  const auto number = [&](size_t k) { return Number(found.factors[k], found.uncertain[k]); };
  const Number a = number(0), b = number(1), c = number(2);
  if (!(std::abs(c.value) > c.error) || !(a.value > a.error)) return {};
  const Number s = -(b + a * set.taken) * pow(c, -1);
  return {true, a, s};
}

// Whether the set's claim is what those statistics give; notes that in `dx`.
bool explained(const Problem& p, const SetValues& set, const Claimed& claimed, const Shifted& by,
               Numbers& dx) {
  const Numbers part = shifted_dx(p, set, by);
  bool all = true;
  for (size_t i = 0; i < part.size(); ++i) {
    dx[set.at[i]] = part[i];
    all = all && claimed.agrees(part[i], set.at[i]);
  }
  return all;
}

std::string in_words(const Problem& p, double most_shift, double most_stretch) {
  std::string text = "the statistics are not those of the sets";
  if (most_shift > 1e-6) {
    text += concat(p.setting.has_mean() ? ": the mean is off by up to " : ": a mean of up to ",
                   rounded_factor(most_shift), p.setting.has_mean() ? "" : " is taken away");
  }
  if (most_stretch > 1e-6)
    text += concat(most_shift > 1e-6 ? ", and " : ": ", "rstd is off by up to ",
                   rounded_factor(100 * most_stretch), "%");
  return text;
}

// The factor of d in a set's claim, if its projection is all that is beside it.
std::optional<Number> factor_of_d(const SetValues& set, const Claimed& claimed) {
  const Values d = values_of(set.d), xhat = values_of(set.xhat);
  const Fit found = fit_set(set, claimed, {&d, &xhat});
  if (found.factors.empty() || !(found.factors[0] > found.uncertain[0])) return {};
  return Number(found.factors[0], found.uncertain[0]);
}

// What eps could be by the set's claim: by its fit; by a plain factor f, where rstd is all that
// shows of it; where eps is all that is left of dx, as in sets of two elements: dx = d·eps·rstd^3.
std::vector<Number> possible_eps(const Problem& p, const SetValues& set, const Claimed& claimed,
                                 const Values& right) {
  std::vector<Number> out;
  const double eps = p.setting.eps;
  const Number var = pow(set.rstd, -2) - eps;
  if (const Shifted by = solve(set, claimed); by.known) out.push_back(pow(by.rho, -2) - var);
  if (const auto rho = factor_of_d(set, claimed); rho && !p.setting.has_mean())
    out.push_back(pow(*rho, -2) - var);
  const Fit found = fit_terms({&right}, claimed.values(), claimed.weights(), set.at);
  if (found.factors.empty() || !(found.factors[0] > 0)) return out;
  // The right gradient is as uncertain as the claim.
  const Number factor(found.factors[0], found.uncertain[0] * (1 + found.factors[0]));
  out.push_back(pow(factor * set.rstd, -2) - var);
  constexpr int kSteps = 60;
  Number left = factor * eps;
  for (int k = 0; k < kSteps; ++k)
    left = {factor.value * eps * std::pow((var.value + left.value) / (var.value + eps), 1.5),
            left.error};
  out.push_back(left);
  return out;
}

}  // namespace

FoundStatistics explaining_statistics(const Problem& p, const Claimed& claimed,
                                      const Numbers& right) {
  if (!p.setting.is_norm() || p.setting.is_evaluation() || p.layout.m < 3) return {};
  FoundStatistics out{.statistics = statistics_candidates(p)[0].statistics};
  const std::vector<SetValues> sets = sorted_by_set(p, out.statistics);
  std::vector<Shifted> found;
  int64_t told = 0;
  double most_shift = 0, most_stretch = 0;
  Numbers dx = right;
  for (const SetValues& set : sets) {
    found.push_back(solve(set, claimed));
    const Shifted& by = found.back();
    if (!by.known) {  // then it must be right as it is
      for (const size_t i : set.at)
        if (!claimed.agrees(right[i], i)) return {};
      continue;
    }
    if (!explained(p, set, claimed, by, dx)) return {};
    ++told;
    most_shift = std::max(most_shift, std::abs(by.s.value / set.rstd.value));
    most_stretch = std::max(most_stretch, std::abs(by.rho.value / set.rstd.value - 1));
  }
  if (told == 0 || 2 * told < p.layout.sets) return {};
  for (size_t i = 0; i < p.x.size(); ++i) {
    const Shifted& set = found[at(p.layout.set, i)];
    if (!set.known) continue;
    out.statistics.mu[i] += set.s * pow(out.statistics.rstd[i], -1);
    out.statistics.rstd[i] = set.rho;
  }
  out.text = in_words(p, most_shift, most_stretch);
  int64_t shifted = 0, stretched = 0;
  for (size_t k = 0; k < sets.size(); ++k) {
    const Number stretch = found[k].rho - sets[k].rstd;
    if (found[k].known && std::abs(found[k].s.value) > found[k].s.error) shifted = 1;
    if (found[k].known && std::abs(stretch.value) > stretch.error) stretched = 1;
  }
  out.bits = spare(claimed.bits_of_parts(dx, std::max<int64_t>(1, shifted + stretched)));
  return out;
}

FoundStatistics explaining_eps(const Problem& p, const Claimed& claimed, const Numbers& right) {
  if (!p.setting.is_norm()) return {};
  const Statistics own = statistics_candidates(p)[0].statistics;
  std::vector<SetValues> sets = sorted_by_set(p, own);
  const auto variance = [&](const Number& rstd) { return pow(rstd, -2) - p.setting.eps; };
  std::ranges::sort(sets, {}, [&](const SetValues& set) { return -set.rstd.value; });
  // The set of least variance that tells.
  const Values column = values_of(right);
  std::vector<Number> possible;
  const auto least = std::ranges::find_if(sets, [&](const SetValues& set) {
    possible = possible_eps(p, set, claimed, column);
    return !possible.empty();
  });
  if (least == sets.end()) return {};
  // What is left of dx tells it best where the variance is large beside it.
  const std::vector<Number> more = possible_eps(p, sets.back(), claimed, column);
  possible.insert(possible.end(), more.begin(), more.end());
  for (const Number& eps : possible) {
    if (!(eps.value > 0) || !std::isfinite(eps.value)) continue;
    const auto changed = [&](const Number& rstd) { return pow(variance(rstd) + eps, -0.5); };
    Numbers dx = right;
    const bool all = std::ranges::all_of(sets, [&](const SetValues& set) {
      return explained(p, set, claimed, {true, changed(set.rstd), {}}, dx);
    });
    if (!all) continue;
    // Where one factor for all rstd does as well, as of a single variance, nothing says that it is
    // eps.
    const Number factor = changed(least->rstd) * pow(least->rstd, -1);
    Numbers scratch = right;
    const bool told = !std::ranges::all_of(sets, [&](const SetValues& set) {
      return explained(p, set, claimed, {true, factor * set.rstd, {}}, scratch);
    });
    FoundStatistics out{Slip::other_eps, {}, own, told ? spare(claimed.bits_of_parts(dx), 1) : 0};
    out.text = fmt::format(
        "another eps than {:.4g} was used in rstd, about {:.2g} (give yours with --eps)",
        p.setting.eps, eps.value);
    std::ranges::transform(own.rstd, out.statistics.rstd.begin(), changed);
    return out;
  }
  return {};
}

}  // namespace gradus::explain
