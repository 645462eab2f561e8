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

#include "autograd/explain/factors.h"
#include "autograd/explain/fit.h"
#include "autograd/explain/judge.h"
#include "core/error.h"

namespace gradus::explain {
namespace {

struct Shifted {
  bool known = false;  // the set is large and varied enough to tell
  double rho = 0, s = 0;
};

struct SetValues {
  Values d, xhat, ones;
  double rstd = 0, m1 = 0, m2 = 0;
};

Shifted solve(const SetValues& set, const Values& claimed, bool with_mean) {
  const Fit found = fit({&set.d, &set.ones, &set.xhat}, claimed);
  if (found.factors.empty()) return {};
  const double a = found.factors[0], b = found.factors[1], c = found.factors[2];
  if (std::abs(c) < 1e-9 || a == 0) return {};
  return {true, a, -(b + (with_mean ? a * set.m1 : 0.0)) / c};
}

// The largest error that remains with those statistics.
double remaining(const SetValues& set, const Values& claimed, const Shifted& found,
                 bool with_mean) {
  const double k = found.rho / set.rstd;
  const double m2 = k * (set.m2 - found.s * set.m1);
  return largest_difference(claimed, each(claimed.size(), [&](size_t i) {
                              const double mean = with_mean ? set.m1 : 0.0;
                              return found.rho *
                                     (set.d[i] - mean - k * (set.xhat[i] - found.s) * m2);
                            }));
}

// The elements of each set, with what its claim says of its statistics.
struct Sorted {
  std::vector<SetValues> sets;
  std::vector<Values> claims;
};

Sorted sorted_by_set(const Problem& p, const Statistics& own, const Values& claimed) {
  const Values xhat = normalized(p, own);
  Sorted sorted{std::vector<SetValues>(static_cast<size_t>(p.layout.sets)),
                std::vector<Values>(static_cast<size_t>(p.layout.sets))};
  const double m = static_cast<double>(p.layout.m);
  for (size_t i = 0; i < claimed.size(); ++i) {
    SetValues& set = sorted.sets[at(p.layout.set, i)];
    const double d = p.dy[i] * p.gamma[i];
    set.d.push_back(d);
    set.xhat.push_back(xhat[i]);
    set.ones.push_back(1);
    set.rstd = own.rstd[i];
    set.m1 += d / m;
    set.m2 += d * xhat[i] / m;
    sorted.claims[at(p.layout.set, i)].push_back(claimed[i]);
  }
  return sorted;
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

// Whether one eps in place of the setting's explains all sets: with eps' = 1/rho^2 - var of the set
// of the least variance, which tells it best. A single variance would let any rstd pass for one.
bool explain_by_eps(FoundStatistics& out, const Problem& p, const Sorted& sorted,
                    const std::vector<Shifted>& found, double allowed) {
  double least = INFINITY, most = 0, eps = 0;
  for (size_t k = 0; k < found.size(); ++k) {
    const double rstd = sorted.sets[k].rstd, var = 1 / (rstd * rstd) - p.setting.eps;
    if (!found[k].known) continue;
    most = std::max(most, var);
    if (var >= least) continue;
    least = var;
    eps = 1 / (found[k].rho * found[k].rho) - var;
  }
  if (!(eps > 0) || most < 1.5 * least) return false;
  Statistics with = out.statistics;
  for (double& rstd : with.rstd) rstd = 1 / std::sqrt(1 / (rstd * rstd) - p.setting.eps + eps);
  for (size_t k = 0; k < found.size(); ++k) {
    const double rstd = sorted.sets[k].rstd;
    const Shifted one{true, 1 / std::sqrt(1 / (rstd * rstd) - p.setting.eps + eps), 0};
    if (!(remaining(sorted.sets[k], sorted.claims[k], one, p.setting.has_mean()) <= allowed))
      return false;
  }
  out = {
      Slip::other_eps,
      fmt::format("another eps than {:.4g} was used in rstd, about {:.2g} (give yours with --eps)",
                  p.setting.eps, eps),
      with};
  return true;
}

}  // namespace

FoundStatistics explaining_statistics(const Problem& p, const Values& claimed, double allowed) {
  if (!p.setting.is_norm() || p.setting.is_evaluation() || p.layout.m < 3) return {};
  FoundStatistics out{.statistics = statistics_candidates(p)[0].statistics};
  const Sorted sorted = sorted_by_set(p, out.statistics, claimed);
  std::vector<Shifted> found;
  int64_t told = 0;
  double most_shift = 0, most_stretch = 0;
  for (size_t k = 0; k < sorted.sets.size(); ++k) {
    const SetValues& set = sorted.sets[k];
    found.push_back(solve(set, sorted.claims[k], p.setting.has_mean()));
    if (!found[k].known) continue;
    // The fit's rounding errors are larger than those of the claim.
    if (!(remaining(set, sorted.claims[k], found[k], p.setting.has_mean()) <= 10 * allowed))
      return {};
    ++told;
    most_shift = std::max(most_shift, std::abs(found[k].s / set.rstd));
    most_stretch = std::max(most_stretch, std::abs(found[k].rho / set.rstd - 1));
  }
  if (told == 0 || 2 * told < p.layout.sets) return {};
  if (explain_by_eps(out, p, sorted, found, allowed)) return out;
  for (size_t i = 0; i < claimed.size(); ++i) {
    const Shifted& set = found[at(p.layout.set, i)];
    if (!set.known) continue;
    out.statistics.mu[i] += set.s / out.statistics.rstd[i];
    out.statistics.rstd[i] = set.rho;
  }
  out.text = in_words(p, most_shift, most_stretch);
  return out;
}

}  // namespace gradus::explain
