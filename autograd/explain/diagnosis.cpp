#include "autograd/explain/diagnosis.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "autograd/explain/judge.h"
#include "autograd/explain/library.h"
#include "core/error.h"
#include "core/tolerance.h"

namespace gradus::explain {
namespace {

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

// Of a large x a small one tells more: a set of thousands shrinks what is to be seen.
Shape reduced(const Setting& setting, Shape x) {
  constexpr int64_t kLarge = 4096, kExtent = 8, kChannels = 64;
  if (x.numel() <= kLarge) return x;
  for (int axis = 0; axis < x.rank(); ++axis) {
    const bool channels = axis == 1 && !setting.is_row_norm();
    const int64_t fewest = setting.layer == Layer::group_norm ? 2 * setting.groups : kExtent;
    if (!channels || x[axis] > kChannels) x[axis] = std::min(x[axis], channels ? fewest : kExtent);
  }
  return x;
}

// The shape, enlarged where it hides something: one sample, small sets, one channel.
Shape telling_shape(const Setting& setting, const Shape& given) {
  Shape x = reduced(setting, given);
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

std::vector<std::string> reasons_for(const Setting& setting, const Inputs& in,
                                     const std::vector<Finding>& findings) {
  const Layout layout = layout_of(setting, in.x.shape());
  std::vector<std::string> reasons;
  if (is_constant(in.dy)) {
    reasons.push_back("dy is the same everywhere: the terms of dx cancel, whatever their mistakes");
  }
  if (layout.params > 0 && is_constant(in.gamma)) {
    reasons.push_back(layout.params == 1
                          ? "there is one gamma: any number is a multiple of its gradient"
                          : "gamma is the same everywhere: where it stands does not "
                            "show, and at 1 not even whether it is there");
  }
  if (layout.samples == 1)
    reasons.push_back(
        "there is a single sample: neither a forgotten sum over the batch nor statistics of "
        "another "
        "one show");
  if (layout.m == 1) reasons.push_back("a set has one element: xhat and dx are 0");
  if (layout.m > 1 && layout.m <= (setting.has_mean() ? 3 : 2)) {
    reasons.push_back(concat("a set has ", layout.m,
                             " elements, as many as dx has terms, or fewer: most of what could be "
                             "wrong looks alike"));
  }
  if (is_constant(in.x)) reasons.push_back("x is the same everywhere: xhat is 0");
  for (const Finding& one : findings) {
    if (one.hidden == 0) continue;
    const bool sets = one.tensor == "dx";
    reasons.push_back(concat("rounding to ", to_string(one.exact_to), " leaves nothing of ",
                             one.tensor, sets ? " in " : " of ", one.hidden,
                             sets ? " set" : " gamma", one.hidden == 1 ? "" : "s",
                             ": x lies too far from 0 for its spread, or overflows",
                             size_of(one.exact_to) == 2 ? ", or this dtype is too coarse" : ""));
  }
  return reasons;
}

// Of mistakes that are hardly larger than what rounding leaves: no other x helps, a finer dtype
// does.
std::string small_mistakes(const std::vector<Finding>& findings) {
  constexpr double kSmall = 100;
  std::string tensors;
  for (const Finding& one : findings) {
    const bool open = one.slip == Slip::cannot_tell && !one.right_or_not;
    if (open && one.share < kSmall && one.exact_to != DType::f64)
      tensors += (tensors.empty() ? "" : " and ") + one.tensor;
  }
  if (tensors.empty()) return "";
  return "what is wrong with " + tensors +
         " is hardly more than rounding may leave: compute in a finer dtype";
}

// Inputs in the precisions that were needed.
class Cases {
 public:
  Cases(const Setting& setting, const Inputs& inputs) : setting_(setting), inputs_(inputs) {}

  struct Case {
    Problem problem;
    Zoo zoo;
  };
  // In the scope of the current precision.
  const Case& here() {
    const auto found = cases_.find({current_precision.storage, current_precision.work});
    if (found != cases_.end()) return found->second;
    Problem problem = problem_of(setting_, inputs_);
    Zoo zoo = zoo_of(problem);
    return cases_[{current_precision.storage, current_precision.work}] = {std::move(problem),
                                                                          std::move(zoo)};
  }

 private:
  const Setting& setting_;
  const Inputs& inputs_;
  std::map<std::pair<DType, DType>, Case> cases_;
};

// In what a claim may have been computed, from the finest on.
std::vector<Precision> precisions(DType claim, DType inputs) {
  std::vector<Precision> all{{claim, acc_dtype(claim)}};
  if (claim == DType::f64) all.push_back({claim, DType::f32});
  if (acc_dtype(claim) != claim) all.push_back({claim, claim});
  if (unit_roundoff(inputs) > unit_roundoff(all.back().work)) all.push_back({claim, inputs});
  return all;
}

struct Judged {
  Finding finding;
  Precision precision;

  // What is wrong where it is finite.
  Slip slip() const {
    const bool partly = finding.slip == Slip::not_finite && !finding.also.empty();
    return partly ? finding.also.front() : finding.slip;
  }
  bool is_named() const { return slip() != Slip::unknown && slip() != Slip::cannot_tell; }
};

void set_open(Finding& finding) {
  finding.slip = Slip::cannot_tell;
  finding.right_or_not = true;
}

// By the first precision that makes the claim right or gives it a name. A coarse one of which
// rounding leaves nothing makes nothing right; but then it cannot be told. A name that was fitted
// in a fine one may have a plain one in a coarse one, too.
Judged judged(const Tensor& claim, DType inputs, const auto& judge) {
  std::vector<Judged> all;
  for (const Precision precision : precisions(claim.dtype(), inputs)) {
    const RoundingScope scope(precision);
    Judged one{judge(), precision};
    one.finding.exact_to = unit_roundoff(precision.work) > unit_roundoff(precision.storage)
                               ? precision.work
                               : precision.storage;
    one.finding.coarse = !all.empty();
    if (all.empty() && one.is_named() && !one.finding.fitted) return one;
    all.push_back(std::move(one));
  }
  Judged& first = all.front();
  // In half precision throughout a right gradient may look like one of slightly other statistics.
  const auto coarse = std::ranges::find_if(
      all, [](const Judged& one) { return one.finding.coarse && one.slip() == Slip::none; });
  if (coarse != all.end() && first.is_named() && size_of(claim.dtype()) == 2) {
    if (coarse->finding.hidden > 0) set_open(coarse->finding);
    return *coarse;
  }
  for (const Judged& one : all) {
    const Finding& finding = one.finding;
    if (one.slip() == Slip::none && finding.coarse && (first.is_named() || finding.hidden > 0))
      continue;
    if (!first.is_named() && one.is_named()) return one;
    const bool listed = one.slip() == Slip::cannot_tell && !finding.right_or_not;
    if (!first.is_named() || !finding.coarse || !(one.is_named() || listed) || finding.fitted)
      continue;
    first.finding.text += "; or: " + finding.text;
    if (!listed) first.finding.also.push_back(finding.slip);
    first.finding.also.insert(first.finding.also.end(), finding.also.begin(), finding.also.end());
  }
  if (first.is_named()) return first;
  for (const Judged& one : all) {
    if (one.slip() == Slip::cannot_tell && first.slip() == Slip::unknown) return one;
    if (one.slip() != Slip::none && !one.finding.right_or_not) continue;
    Judged open = one;
    set_open(open.finding);
    if (first.slip() == Slip::cannot_tell && !first.finding.right_or_not) {
      open.finding.text = first.finding.text;
      open.finding.also = first.finding.also;
    }
    return open;
  }
  return first;
}

using Visible = std::map<Slip, bool>;

void find_blind_spots(Diagnosis& out, const Setting& setting, const Inputs& inputs,
                      const Inputs& proposal, const Visible& here, const Visible& there) {
  for (const auto& [slip, visible] : there) {
    const auto found = here.find(slip);
    if (visible && (found == here.end() || !found->second)) out.blind.push_back(slip);
  }
  if (out.has_power() && out.is_named()) return;
  out.reasons = reasons_for(setting, inputs, out.findings);
  const std::string small = small_mistakes(out.findings);
  if (out.right() || !out.reasons.empty() || small.empty()) out.proposal = proposal;
  if (!small.empty()) out.reasons.push_back(small);
  if (out.reasons.empty()) out.reasons.emplace_back("its values happen to hide them");
}

void check_claims(const Setting& setting, const Inputs& inputs, const Claim& claim) {
  const Layout layout = layout_of(setting, inputs.x.shape());
  check(claim.dx.defined() || claim.dgamma.defined() || claim.dbeta.defined(),
        to_string(setting.layer), "nothing is claimed: there is no dx, dgamma or dbeta");
  check(inputs.gamma.defined() || !claim.dgamma.defined(), to_string(setting.layer),
        "dgamma is claimed, but there is no gamma");
  check(inputs.beta.defined() || !claim.dbeta.defined(), to_string(setting.layer),
        "dbeta is claimed, but there is no beta");
  check_claim(setting, "dx", claim.dx, {inputs.x.numel()});
  const Tensor& dx = claim.dx;
  check(!dx.defined() || dx.shape().rank() == 1 || dx.shape() == inputs.x.shape(),
        to_string(setting.layer), "the claimed dx must have the shape of x, ", inputs.x.shape(),
        ", got ", dx);
  check_claim(setting, "dgamma", claim.dgamma, {layout.params, layout.samples * layout.params});
  check_claim(setting, "dbeta", claim.dbeta, {layout.params, layout.samples * layout.params});
}

}  // namespace

Diagnosis diagnose(const Setting& setting, const Inputs& given, const Claim& claim) {
  check(given.x.defined() && given.dy.defined(), to_string(setting.layer),
        "a diagnosis needs x and dy");
  check(given.x.numel() <= kMostElements, to_string(setting.layer), "a diagnosis takes up to ",
        kMostElements, " elements, got x ", given.x.shape(),
        ": a few samples tell as much; claim the gradients of those alone");
  const Inputs inputs = with_defaults(setting, given);
  check_finite(setting, "x", inputs.x);
  check_finite(setting, "dy", inputs.dy);
  const Library library = run_library(setting, inputs);
  for (const Tensor& gradient : {library.dx, library.dgamma, library.dbeta})
    check_finite(setting, "the right gradient", gradient);
  check_claims(setting, inputs, claim);
  const Inputs proposal = draw_inputs(setting, telling_shape(setting, inputs.x.shape()), 1);
  Cases here(setting, inputs), there(setting, proposal);
  Visible visible_here, visible_there;
  Diagnosis out;
  const auto add = [&](std::string_view name, const Tensor& tensor, const auto& judge) {
    if (!tensor.defined()) return;
    Judged one = judged(tensor, claim.inputs, judge);
    out.findings.push_back(std::move(one.finding));
    const RoundingScope scope(one.precision);
    note_visible(visible_here, here.here().zoo, name);
    note_visible(visible_there, there.here().zoo, name);
  };
  FoundStatistics found;
  add("dx", claim.dx, [&] {
    const Cases::Case& now = here.here();
    FoundStatistics statistics;
    Finding finding = judge_dx(now.problem, now.zoo.dx, library.dx.to_vector<double>(),
                               claim.dx.to_vector<double>(), statistics);
    if (found.text.empty()) found = std::move(statistics);  // the finest
    return finding;
  });
  add("dgamma", claim.dgamma, [&] {
    const Cases::Case& now = here.here();
    std::vector<SumCandidate> candidates = now.zoo.dgamma;
    if (!found.text.empty())
      candidates.push_back({found.slip, "it has the same statistics as that dx",
                            dgamma_with(now.problem, found.statistics)});
    return judge_sum(now.problem, "dgamma", candidates, claim.dgamma.to_vector<double>());
  });
  add("dbeta", claim.dbeta, [&] {
    const Cases::Case& now = here.here();
    return judge_sum(now.problem, "dbeta", now.zoo.dbeta, claim.dbeta.to_vector<double>());
  });
  find_blind_spots(out, setting, inputs, proposal, visible_here, visible_there);
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

}  // namespace gradus::explain
