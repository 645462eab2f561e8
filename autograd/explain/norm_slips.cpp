// Slips of the five norms.
#include <algorithm>
#include <set>
#include <tuple>

#include "autograd/explain/slips.h"

namespace gradus::explain {
namespace {

constexpr const char* kBatchStatistics =
    "the statistics are those of the batch; evaluation takes the running ones";

// Powers of gamma where d stands in the formula, and outside of all.
struct GammaPowers {
  int direct = 1, sums = 1, outside = 0;  // outside: at most 1
};

Numbers weighted(const Problem& p, int power) {
  Numbers d = p.dy;
  for (int k = 0; k < power; ++k)
    for (size_t i = 0; i < d.size(); ++i) d[i] *= p.gamma[i];
  return d;
}

// direct, mean (of layers that have one) and projection, with sums over `sets`.
std::vector<Term> terms_of(const Problem& p, const Statistics& s, const Sets& sets,
                           const GammaPowers& powers, bool with_mean) {
  const Numbers direct = weighted(p, powers.direct), d = weighted(p, powers.sums);
  const Numbers xhat = normalized(p, s);
  const Numbers m1 = mean_over(sets, d), m2 = mean_over(sets, product(d, xhat));
  const Numbers factor = powers.outside == 0 ? s.rstd : product(s.rstd, p.gamma);
  std::vector<Term> terms{
      {"direct", each(d.size(), [&](size_t i) { return factor[i] * direct[i]; })}};
  if (with_mean)
    terms.push_back({"mean", each(d.size(), [&](size_t i) { return -factor[i] * m1[i]; })});
  terms.push_back(
      {"projection", each(d.size(), [&](size_t i) { return -factor[i] * xhat[i] * m2[i]; })});
  return terms;
}

// Sets that a layer's own may be mistaken for.
struct NamedSets {
  std::string text;
  Sets sets;
};

// Channels apart in place of neighbours, and another number of groups: half, twice, or that of the
// channels of one.
void add_other_groups(std::vector<NamedSets>& out, const Problem& p) {
  const Layout& l = p.layout;
  const int64_t groups = p.setting.groups, c = l.params;
  const auto add = [&](std::string text, auto group_of_channel) {
    std::vector<int64_t> keys(l.param.size());
    for (size_t i = 0; i < keys.size(); ++i)
      keys[i] = l.sample[i] * c + group_of_channel(l.param[i]);
    out.push_back({std::move(text), sets_of(std::move(keys))});
  };
  add(concat("the channels of a sample that lie ", groups, " apart"),
      [&](int64_t k) { return k % groups; });
  for (const int64_t other : std::set{groups / 2, 2 * groups, c / groups}) {
    if (other < 2 || other == groups || other >= c || c % other != 0) continue;
    add(concat(other, " groups, not ", groups), [&](int64_t k) { return k / (c / other); });
  }
}

std::vector<NamedSets> other_sets(const Problem& p) {
  const Layout& l = p.layout;
  std::vector<int64_t> pairs(l.param.size());
  for (size_t i = 0; i < pairs.size(); ++i) pairs[i] = l.sample[i] * l.params + l.param[i];
  if (p.setting.is_row_norm()) return {{"all rows, feature by feature", sets_of(l.param)}};
  std::vector<NamedSets> out{{"a whole sample", sets_of(l.sample)},
                             {"a channel over all samples", sets_of(l.param)},
                             {"one channel of one sample", sets_of(pairs)}};
  if (p.setting.layer == Layer::group_norm) add_other_groups(out, p);
  return out;
}

// About mu. What is subtracted is the less exact the further x lies from 0.
Numbers variance_over(const Problem& p, const Sets& sets, const Numbers& mu) {
  const Numbers off = each(p.x.size(), [&](size_t i) { return p.x[i] - mu[i]; });
  return mean_over(sets, product(off, off));
}

Statistics statistics_over(const Problem& p, const Sets& sets, bool with_mean, double eps) {
  Statistics s;
  s.mu = with_mean ? mean_over(sets, p.x) : Numbers(p.x.size());
  const Numbers var = variance_over(p, sets, s.mu);
  s.rstd = each(var.size(), [&](size_t i) { return pow(var[i] + eps, -0.5); });
  return s;
}

void add_gamma_slips(std::vector<Candidate>& out, const Problem& p, const Statistics& s,
                     const Sets& own) {
  const bool mean = p.setting.has_mean();
  const auto add = [&](Slip slip, std::string text, const GammaPowers& powers) {
    out.push_back({slip, std::move(text), terms_of(p, s, own, powers, mean)});
  };
  const std::string means = mean ? "m1 and m2: they must be means of d = dy·gamma"
                                 : "m2: it must be a mean of d·xhat with d = dy·gamma";
  add(Slip::gamma_outside, "gamma was pulled out of " + means + ", since gamma varies over the set",
      {.direct = 0, .sums = 0, .outside = 1});
  add(Slip::gamma_not_in_sums, "gamma is in the direct term only, but not in " + means,
      {.sums = 0});
  add(Slip::gamma_missing, "gamma is missing: d = dy·gamma takes the place of dy everywhere",
      {.direct = 0, .sums = 0});
  add(Slip::gamma_twice, "gamma is in it twice: d = dy·gamma holds it already",
      {.direct = 2, .sums = 2});
  add(Slip::gamma_twice, "gamma is in it twice: inside d = dy·gamma and in front of it all",
      {.outside = 1});
}

void add_missing_terms(std::vector<Candidate>& out, const std::vector<Term>& right,
                       const Problem& p) {
  const bool mean = p.setting.has_mean();
  if (mean) {
    out.push_back({Slip::mean_missing,
                   "the mean term -rstd·m1 is missing: mu depends on every x of its set",
                   {right.front(), right.back()}});
  }
  std::vector<Term> without = right;
  without.pop_back();
  out.push_back({Slip::projection_missing,
                 "the projection term -rstd·xhat·m2 is missing: rstd depends on every x of its set",
                 without});
  if (mean) {
    out.push_back({Slip::evaluation_formula,
                   "only the direct term is there: mean and projection are missing; rstd·d is the "
                   "formula of evaluation, where mu and rstd are constants",
                   {right.front()}});
  }
  std::vector<Term> bare = right;
  bare.erase(bare.begin());
  out.push_back({Slip::direct_missing, "the direct term rstd·d is missing", bare});
}

void add_count_slip(std::vector<Candidate>& out, std::vector<Term> terms, const Problem& p) {
  if (p.layout.m < 2) return;
  const double m = static_cast<double>(p.layout.m), factor = m / (m - 1);
  for (size_t t = 1; t < terms.size(); ++t)
    for (Number& value : terms[t].values) value *= factor;
  out.push_back({Slip::wrong_count,
                 concat("the sums are divided by ", p.layout.m - 1,
                        ", which is m - 1, instead of m = ", p.layout.m),
                 terms});
}

// Powers of rstd: in front of it all, in the mean, and in the projection, which with x in place of
// xhat is cubic in it.
void add_rstd_slips(std::vector<Candidate>& out, const std::vector<Term>& right,
                    const Statistics& s) {
  for (const auto& [slip, text, power] :
       {std::tuple(Slip::rstd_missing, "the factor rstd in front of it all is missing", -1),
        {Slip::rstd_extra, "there is a factor rstd too much in front of it all", 1}}) {
    std::vector<Term> terms = right;
    for (Term& term : terms)
      for (size_t i = 0; i < s.rstd.size(); ++i) term.values[i] *= pow(s.rstd[i], power);
    out.push_back({slip, text, terms});
  }
  const auto add = [&](Slip slip, std::string text, size_t term, int power) {
    std::vector<Term> terms = right;
    for (size_t i = 0; i < s.rstd.size(); ++i) terms[term].values[i] *= pow(s.rstd[i], power);
    out.push_back({slip, std::move(text), terms});
  };
  const size_t last = right.size() - 1;
  const std::string projection = " in the projection, which is rstd·xhat·m2 with m2 = mean(d·xhat)";
  if (last == 2) add(Slip::rstd_missing, "the factor rstd is missing in the mean, rstd·m1", 1, -1);
  add(Slip::rstd_missing, "a factor rstd is missing" + projection, last, -1);
  add(Slip::rstd_missing, "two factors rstd are missing" + projection, last, -2);
  add(Slip::rstd_missing, "three factors rstd are missing" + projection, last, -3);
  add(Slip::rstd_extra, "there is a factor rstd too much" + projection, last, 1);
  add(Slip::rstd_extra, "there are two factors rstd too much" + projection, last, 2);
}

// x as it came in the projection, or in its mean.
void add_x_for_xhat(std::vector<Candidate>& out, const Problem& p, const Statistics& s,
                    const std::vector<Term>& right, const Sets& own) {
  if (!p.setting.has_mean()) return;  // then a factor rstd is missing
  const Numbers d = product(p.dy, p.gamma), xhat = normalized(p, s);
  const auto add = [&](std::string text, const Numbers& along, const Numbers& m2) {
    std::vector<Term> terms = right;
    terms.back().values = each(p.x.size(), [&](size_t i) { return -s.rstd[i] * along[i] * m2[i]; });
    out.push_back({Slip::x_for_xhat, std::move(text), terms});
  };
  add("the projection has x in place of xhat", p.x, mean_over(own, product(d, xhat)));
  add("m2 has x in place of xhat: it is mean(d·xhat)", xhat, mean_over(own, product(d, p.x)));
}

void add_set_slips(std::vector<Candidate>& out, const Problem& p, const Statistics& s) {
  const bool mean = p.setting.has_mean();
  for (const NamedSets& other : other_sets(p)) {
    const auto count = static_cast<int64_t>(other.sets.count[0]);  // all are alike
    out.push_back({Slip::wrong_set,
                   (mean ? "m1 and m2 run over " : "m2 runs over ") + other.text +
                       " instead of the set that shares the statistics",
                   terms_of(p, s, other.sets, {}, mean), count});
    out.push_back(
        {Slip::wrong_set, "statistics and sums are those of " + other.text,
         terms_of(p, statistics_over(p, other.sets, mean, p.setting.eps), other.sets, {}, mean),
         count});
  }
  if (!p.setting.is_row_norm()) return;
  const Sets own = sets_of(p.layout.set);
  out.push_back({Slip::other_layer,
                 mean ? "this is rms_norm's formula: no mean is taken away, and m1 is missing"
                      : "this is layer_norm's formula: rms_norm takes no mean away and has no m1",
                 terms_of(p, statistics_over(p, own, !mean, p.setting.eps), own, {}, !mean)});
}

// The running ones, or those of a neighbour.
void add_stale_statistics(std::vector<NamedStatistics>& out, const Problem& p,
                          const Statistics& own) {
  if (!p.running_mean.empty()) {
    Statistics running = own;
    for (size_t i = 0; i < p.x.size(); ++i) {
      running.mu[i] = p.running_mean[at(p.layout.set, i)];
      running.rstd[i] = pow(p.running_var[at(p.layout.set, i)] + p.setting.eps, -0.5);
    }
    out.push_back({Slip::stale_statistics,
                   "the statistics are the running ones; training takes those of the batch",
                   running});
  }
  const size_t per_sample = p.x.size() / static_cast<size_t>(p.layout.samples);
  if (p.setting.layer == Layer::batch_norm) return;
  for (const bool next : {true, false}) {
    const size_t step = next ? per_sample : p.x.size() - per_sample;
    Statistics moved = own;
    for (size_t i = 0; i < p.x.size(); ++i) {
      moved.mu[i] = own.mu[(i + step) % p.x.size()];
      moved.rstd[i] = own.rstd[(i + step) % p.x.size()];
    }
    out.push_back(
        {Slip::stale_statistics,
         concat("the statistics are those of the ", next ? "next" : "previous", " sample"), moved});
  }
}

}  // namespace

std::vector<NamedStatistics> statistics_candidates(const Problem& p) {
  const Layout& l = p.layout;
  const bool mean = p.setting.has_mean();
  const double eps = p.setting.eps, m = static_cast<double>(l.m);
  const Sets sets = sets_of(l.set);
  Statistics own = statistics_over(p, sets, mean, eps);
  Numbers var = variance_over(p, sets, own.mu);
  if (p.setting.is_evaluation()) {
    own.mu = each(own.mu.size(), [&](size_t i) { return p.running_mean[at(l.set, i)]; });
    var = each(own.mu.size(), [&](size_t i) { return p.running_var[at(l.set, i)]; });
    own.rstd = each(var.size(), [&](size_t i) { return pow(var[i] + eps, -0.5); });
  }
  std::vector<NamedStatistics> out{{Slip::none, "", own}};
  const auto add = [&](Slip slip, std::string text, auto rstd) {
    out.push_back({slip, std::move(text), {own.mu, each(var.size(), rstd)}});
  };
  if (l.m > 1 && !p.setting.is_evaluation()) {
    add(Slip::unbiased_variance,
        concat(mean ? "the variance is the unbiased one, divided by m - 1"
                    : "the mean square is divided by m - 1",
               "; the forward divides by m"),
        [&](size_t i) { return pow(var[i] * (m / (m - 1)) + eps, -0.5); });
    add(Slip::wrong_count,
        concat(mean ? "the variance" : "the mean square",
               " is a sum: it must be divided by m = ", l.m),
        [&](size_t i) { return pow(var[i] * m + eps, -0.5); });
  }
  add(Slip::eps_missing,
      concat("eps is missing in rstd, or another one than ", eps,
             " was used (give yours with --eps)"),
      [&](size_t i) { return pow(var[i], -0.5); });
  add(Slip::eps_outside_root, "eps was added to the root: it belongs inside, to the variance",
      [&](size_t i) { return pow(pow(var[i], 0.5) + eps, -1); });
  add(Slip::wrong_root, "rstd has no root: it is 1 / sqrt(var + eps), not 1 / (var + eps)",
      [&](size_t i) { return pow(var[i] + eps, -1); });
  add(Slip::wrong_root, "rstd is one over the root, 1 / sqrt(var + eps), not the root",
      [&](size_t i) { return pow(var[i] + eps, 0.5); });
  if (!p.setting.is_evaluation()) add_stale_statistics(out, p, own);
  return out;
}

std::vector<NamedStatistics> other_statistics(const Problem& p) {
  const bool mean = p.setting.has_mean();
  const auto own = [&](bool with_mean) {
    return statistics_over(p, sets_of(p.layout.set), with_mean, p.setting.eps);
  };
  if (p.setting.is_evaluation()) return {{Slip::stale_statistics, kBatchStatistics, own(true)}};
  std::vector<NamedStatistics> out;
  if (p.setting.is_row_norm()) {
    out.push_back({Slip::other_layer,
                   mean ? "this is rms_norm's: no mean is taken away"
                        : "this is layer_norm's: rms_norm takes no mean away",
                   own(!mean)});
  }
  for (const NamedSets& other : other_sets(p)) {
    out.push_back({Slip::wrong_set, "the statistics are those of " + other.text,
                   statistics_over(p, other.sets, mean, p.setting.eps)});
  }
  return out;
}

std::vector<Candidate> norm_candidates(const Problem& p,
                                       const std::vector<NamedStatistics>& statistics) {
  const bool mean = p.setting.has_mean();
  const Sets own = sets_of(p.layout.set);
  const Statistics& s = statistics[0].statistics;
  const std::vector<Term> right = terms_of(p, s, own, {}, mean);
  std::vector<Candidate> out{{Slip::none, "right", right}};
  add_missing_terms(out, right, p);
  add_count_slip(out, right, p);
  add_gamma_slips(out, p, s, own);
  for (size_t i = 1; i < statistics.size(); ++i)
    out.push_back({statistics[i].slip, statistics[i].text,
                   terms_of(p, statistics[i].statistics, own, {}, mean)});
  for (const NamedStatistics& one : statistics) {
    if (one.slip != Slip::stale_statistics || p.running_mean.empty()) continue;
    out.push_back({Slip::evaluation_formula,
                   "this is the formula of evaluation, with the running statistics: training has "
                   "those of the batch, which depend on x",
                   {terms_of(p, one.statistics, own, {}, mean).front()}});
  }
  add_rstd_slips(out, right, s);
  add_x_for_xhat(out, p, s, right, own);
  add_set_slips(out, p, s);
  if (!mean) {
    out.push_back({Slip::mean_extra, "rms_norm has no m1: it takes no mean away",
                   terms_of(p, s, own, {}, true)});
  }
  return out;
}

std::vector<Candidate> evaluation_candidates(const Problem& p,
                                             const std::vector<NamedStatistics>& statistics) {
  const Sets own = sets_of(p.layout.set);
  const auto direct = [&](const Statistics& s, const GammaPowers& powers) {
    std::vector<Term> terms = terms_of(p, s, own, powers, true);
    terms.resize(1);
    return terms;
  };
  const Statistics& s = statistics[0].statistics;
  const Statistics batch = statistics_over(p, own, true, p.setting.eps);
  std::vector<Candidate> out{{Slip::none, "right", direct(s, {})}};
  const std::string constants = "in evaluation mu and rstd are constants, so that dx = rstd·d";
  out.push_back({Slip::training_formula, "this is the formula of training: " + constants,
                 terms_of(p, s, own, {}, true)});
  out.push_back({Slip::training_formula,
                 "this is the formula of training, with the statistics of the batch: " + constants,
                 terms_of(p, batch, own, {}, true)});
  out.push_back({Slip::stale_statistics, kBatchStatistics, direct(batch, {})});
  out.push_back(
      {Slip::gamma_missing, "gamma is missing: dx = rstd·dy·gamma", direct(s, {.direct = 0})});
  out.push_back({Slip::gamma_twice, "gamma is in it twice", direct(s, {.direct = 2})});
  for (size_t i = 1; i < statistics.size(); ++i)
    out.push_back({statistics[i].slip, statistics[i].text, direct(statistics[i].statistics, {})});
  out.push_back({Slip::rstd_missing, "the factor rstd is missing", {{"direct", weighted(p, 1)}}});
  return out;
}

}  // namespace gradus::explain
