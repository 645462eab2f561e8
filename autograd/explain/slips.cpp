#include "autograd/explain/slips.h"

#include "core/error.h"

namespace gradus::explain {

Problem problem_of(const Setting& setting, const Inputs& in) {
  Problem p{.setting = setting, .layout = layout_of(setting, in.x.shape()), .shape = in.x.shape()};
  p.x = as_inputs(in.x.to_vector<double>());
  p.dy = as_inputs(in.dy.to_vector<double>());
  const Numbers gamma = as_inputs(in.gamma.defined() ? in.gamma.to_vector<double>() : Values());
  p.gamma = each(p.x.size(), [&](size_t i) {
    return gamma.empty() ? Number(1.0) : gamma[at(p.layout.param, i)];
  });
  if (in.running_mean.defined()) {
    p.running_mean = as_inputs(in.running_mean.to_vector<double>());
    p.running_var = as_inputs(in.running_var.to_vector<double>());
  }
  return p;
}

Numbers sum_of(const std::vector<Term>& terms) {
  Numbers sum = terms.front().values;
  for (size_t t = 1; t < terms.size(); ++t)
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += terms[t].values[i];
  return sum;
}

Numbers normalized(const Problem& p, const Statistics& s) {
  return each(p.x.size(), [&](size_t i) { return (p.x[i] - s.mu[i]) * s.rstd[i]; });
}

Sets sets_of(std::vector<int64_t> keys) {
  std::vector<int64_t> numbers(keys.size(), -1);
  Sets sets{.of = std::move(keys)};
  for (int64_t& key : sets.of) {
    int64_t& number = numbers[static_cast<size_t>(key)];
    if (number < 0) {
      number = std::ssize(sets.count);
      sets.count.push_back(0);
    }
    key = number;
    ++sets.count[static_cast<size_t>(key)];
  }
  return sets;
}

Numbers sum_over(const Sets& sets, const Numbers& values) {
  std::vector<Sum> sums(sets.count.size());
  for (size_t i = 0; i < values.size(); ++i) sums[at(sets.of, i)].add(values[i]);
  const Numbers totals = each(sums.size(), [&](size_t k) { return sums[k].total(); });
  return each(values.size(), [&](size_t i) { return totals[at(sets.of, i)]; });
}

Numbers mean_over(const Sets& sets, const Numbers& values) {
  Numbers means = sum_over(sets, values);
  for (size_t i = 0; i < means.size(); ++i) means[i] *= 1 / sets.count[at(sets.of, i)];
  return means;
}

Numbers product(const Numbers& a, const Numbers& b) {
  return each(a.size(), [&](size_t i) { return a[i] * b[i]; });
}

namespace {

// [samples][params]: what each sample adds.
std::vector<Numbers> sums_of_samples(const Problem& p, const Numbers& values) {
  std::vector<Numbers> sums(static_cast<size_t>(p.layout.samples),
                            Numbers(static_cast<size_t>(p.layout.params)));
  for (size_t i = 0; i < values.size(); ++i)
    sums[at(p.layout.sample, i)][at(p.layout.param, i)] += values[i];
  return sums;
}

// Sums over only some of the samples: from the first on, or up to the last.
void add_partial_sums(std::vector<SumCandidate>& out, const Problem& p, const Numbers& values,
                      const std::string& name) {
  constexpr int64_t kMost = 64;
  const int64_t n = p.layout.samples;
  const std::string what = p.setting.is_row_norm() ? "row" : "sample";
  const std::string rest = concat(": ", name, " is a sum over all ", n, " ", what, "s");
  const std::vector<Numbers> samples = sums_of_samples(p, values);
  Numbers head(samples[0].size()), tail = head;
  const auto add = [&](Numbers& sum, int64_t sample, const char* text, int64_t first,
                       int64_t last) {
    for (size_t k = 0; k < sum.size(); ++k) sum[k] += samples[static_cast<size_t>(sample)][k];
    if (last - first > kMost && last - first < n - kMost) return;
    const std::string range =
        last - first == 1 ? concat(what, " ", first) : concat(what, "s ", first, " to ", last - 1);
    out.push_back({Slip::batch_sum_forgotten, text + range + " only" + rest, sum});
  };
  for (int64_t j = 1; j < n; ++j) {
    add(head, j - 1, "the sum over the batch ends early: it holds ", 0, j);
    add(tail, n - j, "the sum over the batch begins late: it holds ", n - j, n);
  }
}

// Sums over all samples of what `values` holds per element, and the slips of summing.
std::vector<SumCandidate> sum_candidates(const Problem& p, const Numbers& values,
                                         const std::string& name) {
  const Numbers right = sum_over_params(p.layout, values);
  std::vector<SumCandidate> out{{Slip::none, "right", right}};
  add_partial_sums(out, p, values, name);
  out.push_back(
      {Slip::batch_sum_forgotten, "it is 0: nothing has been added", Numbers(right.size())});
  Numbers last(right.size());
  for (size_t i = 0; i < values.size(); ++i) last[at(p.layout.param, i)] = values[i];
  out.push_back({Slip::batch_sum_forgotten,
                 concat("it holds the last element's share only, as of = in place of +=: ", name,
                        " is a sum over all elements that share the parameter"),
                 std::move(last)});
  const auto add_mean = [&](Slip slip, std::string_view of, int64_t count) {
    out.push_back({slip,
                   concat("it is divided by the number of ", of, ", ", count, ": ", name,
                          " is a sum, not a mean"),
                   each(right.size(),
                        [&](size_t k) { return right[k] * (1 / static_cast<double>(count)); })});
  };
  const int64_t n = p.layout.samples, elements = std::ssize(values) / p.layout.params;
  add_mean(Slip::batch_mean, p.setting.is_row_norm() ? "rows" : "samples", n);
  if (elements != n) add_mean(Slip::wrong_count, "elements that share the parameter", elements);
  return out;
}

std::vector<SumCandidate> dgamma_candidates(const Problem& p,
                                            const std::vector<NamedStatistics>& statistics) {
  const Statistics& s = statistics[0].statistics;
  const Numbers xhat = normalized(p, s);
  std::vector<SumCandidate> out = sum_candidates(p, product(p.dy, xhat), "dgamma");
  const auto add = [&](Slip slip, std::string text, const Numbers& values) {
    out.push_back({slip, std::move(text), sum_over_params(p.layout, values)});
  };
  add(Slip::x_for_xhat, "it is Σ dy·x: x must be normalized first", product(p.dy, p.x));
  if (p.setting.has_mean()) {
    add(Slip::x_for_xhat, "it is Σ dy·(x - mu): the factor rstd is missing",
        each(p.x.size(), [&](size_t i) { return p.dy[i] * (p.x[i] - s.mu[i]); }));
  }
  add(Slip::gamma_in_dgamma, "it is Σ dy·gamma·xhat: gamma does not belong into its own gradient",
      product(product(p.dy, p.gamma), xhat));
  for (size_t i = 1; i < statistics.size(); ++i)
    out.push_back(
        {statistics[i].slip, statistics[i].text, dgamma_with(p, statistics[i].statistics)});
  for (const NamedStatistics& other : other_statistics(p))
    out.push_back({other.slip, other.text, dgamma_with(p, other.statistics)});
  add(Slip::swapped, "it is dbeta: the two are swapped", p.dy);
  return out;
}

std::vector<SumCandidate> dbeta_candidates(const Problem& p, const Statistics& own) {
  std::vector<SumCandidate> out = sum_candidates(p, p.dy, "dbeta");
  out.push_back({Slip::gamma_in_dgamma, "it is Σ dy·gamma: gamma does not belong into it",
                 sum_over_params(p.layout, product(p.dy, p.gamma))});
  out.push_back({Slip::swapped, "it is dgamma: the two are swapped", dgamma_with(p, own)});
  return out;
}

}  // namespace

Numbers dgamma_with(const Problem& p, const Statistics& statistics) {
  return sum_over_params(p.layout, product(p.dy, normalized(p, statistics)));
}

Zoo zoo_of(const Problem& p) {
  if (p.setting.layer == Layer::local_response_norm) return {.dx = response_candidates(p)};
  if (p.setting.layer == Layer::softmax2d) return {.dx = softmax_candidates(p)};
  const std::vector<NamedStatistics> statistics = statistics_candidates(p);
  return {.dx = p.setting.is_evaluation() ? evaluation_candidates(p, statistics)
                                          : norm_candidates(p, statistics),
          .dgamma = dgamma_candidates(p, statistics),
          .dbeta = dbeta_candidates(p, statistics[0].statistics)};
}

}  // namespace gradus::explain
