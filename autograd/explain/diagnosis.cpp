#include "autograd/explain/diagnosis.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "autograd/explain/judge.h"
#include "autograd/explain/library.h"
#include "autograd/explain/precisions.h"
#include "core/error.h"

namespace gradus::explain {
namespace {

void check_values(const Setting& setting, std::string_view name, const Tensor& tensor,
                  std::initializer_list<int64_t> counts) {
  if (!tensor.defined()) return;
  const bool fits = std::ranges::find(counts, tensor.numel()) != counts.end();
  check(is_floating(tensor.dtype()) && fits, to_string(setting.layer), "the claimed ", name,
        " must have ", *counts.begin(), " floating values, got ", tensor);
}

void check_claims(const Setting& setting, const Inputs& inputs, const Claim& claim) {
  const Layout layout = layout_of(setting, inputs.x.shape());
  check(claim.dx.defined() || claim.dgamma.defined() || claim.dbeta.defined(),
        to_string(setting.layer), "nothing is claimed: there is no dx, dgamma or dbeta");
  check(inputs.gamma.defined() || !claim.dgamma.defined(), to_string(setting.layer),
        "dgamma is claimed, but there is no gamma");
  check(inputs.beta.defined() || !claim.dbeta.defined(), to_string(setting.layer),
        "dbeta is claimed, but there is no beta");
  check_values(setting, "dx", claim.dx, {inputs.x.numel()});
  const Tensor& dx = claim.dx;
  check(!dx.defined() || dx.rank() == 1 || dx.shape() == inputs.x.shape(), to_string(setting.layer),
        "the claimed dx must have the shape of x, ", inputs.x.shape(), ", got ", dx);
  check_values(setting, "dgamma", claim.dgamma, {layout.params, layout.samples * layout.params});
  check_values(setting, "dbeta", claim.dbeta, {layout.params, layout.samples * layout.params});
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
    constexpr int64_t kMost = 256;  // a wider window hides which side of it is longer
    const bool window = setting.layer == Layer::local_response_norm;
    x[1] = std::max(x[1], window ? std::min(setting.size, kMost) + 2 : 3);
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

// Why rounding leaves nothing of some of it.
std::string hidden_text(const Finding& one) {
  const bool sets = one.tensor == "dx";
  return concat("rounding to ", to_string(one.exact_to), " leaves nothing of ", one.tensor,
                sets ? " in " : " of ", one.hidden, sets ? " set" : " gamma",
                one.hidden == 1 ? "" : "s", ": x lies too far from 0 for its spread, or overflows",
                size_of(one.exact_to) == 2 ? ", or this dtype is too coarse" : "");
}

// The d, or softmax2d's dy, of one number over each set: m1 is all of it, and m2 is 0.
bool terms_cancel(const Setting& setting, const Inputs& in, const Layout& layout) {
  if (!is_constant(in.dy) || setting.is_evaluation()) return false;
  if (setting.layer == Layer::softmax2d) return true;
  return setting.has_mean() && !gamma_varies(layout, in.gamma);
}

// What one element, or one channel of those that a window or a softmax runs over, hides.
std::string one_element_text(const Setting& setting) {
  switch (setting.layer) {
    case Layer::local_response_norm:
      return "there is one channel: it has no neighbours";
    case Layer::softmax2d:
      return "there is one channel: y is 1 and dx is 0";
    case Layer::rms_norm:
      return "a set has one element: xhat is 1 or -1 and dx is 0, but for eps";
    default:
      return "a set has one element: xhat and dx are 0";
  }
}

std::vector<std::string> reasons_for(const Setting& setting, const Inputs& in,
                                     const std::vector<Finding>& findings) {
  const Layout layout = layout_of(setting, in.x.shape());
  std::vector<std::string> reasons;
  if (is_constant(in.dy)) {
    reasons.push_back(terms_cancel(setting, in, layout)
                          ? "dy is the same everywhere: the terms of dx cancel, whatever their "
                            "mistakes"
                          : "dy is the same everywhere");
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
        "another one show");
  if (layout.m == 1 && !setting.is_evaluation()) reasons.push_back(one_element_text(setting));
  if (layout.m > 1 && layout.m <= (setting.has_mean() ? 3 : 2)) {
    reasons.push_back(concat("a set has ", layout.m,
                             " elements, as many as dx has terms, or fewer: most of what could be "
                             "wrong looks alike"));
  }
  const bool is_centred = setting.has_mean() && !setting.is_evaluation();
  if (is_constant(in.x))
    reasons.push_back(concat("x is the same everywhere", is_centred ? ": xhat is 0" : ""));
  for (const Finding& one : findings)
    if (one.hidden > 0) reasons.push_back(hidden_text(one));
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

struct Case {
  Problem problem;
  Zoo zoo;
};

// Inputs in the precisions that were needed.
class Cases {
 public:
  Cases(const Setting& setting, const Inputs& inputs) : setting_(setting), inputs_(inputs) {}

  const Case& in_current_precision() {
    const auto [found, is_new] = cases_.try_emplace(current_precision);
    Case& one = found->second;
    if (is_new) {
      one.problem = problem_of(setting_, inputs_);
      one.zoo = zoo_of(one.problem);
    }
    return one;
  }

 private:
  const Setting& setting_;
  const Inputs& inputs_;
  std::map<Precision, Case> cases_;
};

// Why the input shows no more, and what does.
void propose(Diagnosis& out, const Setting& setting, const Inputs& inputs, const Inputs& proposal) {
  if (out.has_power() && out.is_named()) return;
  out.reasons = reasons_for(setting, inputs, out.findings);
  const std::string small = small_mistakes(out.findings);
  if (out.right() || !out.reasons.empty() || small.empty()) out.proposal = proposal;
  if (!small.empty()) out.reasons.push_back(small);
  if (out.reasons.empty()) out.reasons.emplace_back("its values happen to hide them");
}

}  // namespace

Diagnosis diagnose(const Setting& setting, const Inputs& given, const Claim& claim) {
  check(given.x.defined() && given.dy.defined(), to_string(setting.layer),
        "a diagnosis needs x and dy");
  check(given.x.numel() <= kMostElements, to_string(setting.layer), "a diagnosis takes up to ",
        kMostElements, " elements, got x ", given.x.shape(),
        ": a few samples tell as much; claim the gradients of those alone");
  const Inputs inputs = with_defaults(setting, given);
  const Library library = run_library(setting, inputs);
  for (const Tensor& gradient : {library.dx, library.dgamma, library.dbeta})
    check_finite(setting, "the right gradient", gradient);
  check_claims(setting, inputs, claim);
  const Inputs proposal = draw_inputs(setting, telling_shape(setting, inputs.x.shape()), 1);
  Cases here(setting, inputs), there(setting, proposal);
  std::set<Slip> visible_here, visible_there, visible_in_f64;
  Diagnosis out;
  const auto add = [&](std::string_view name, const Tensor& tensor, const auto& judge) {
    if (!tensor.defined()) return;
    Judged one =
        judged(tensor.dtype(), claim.inputs, [&] { return judge(here.in_current_precision()); });
    const RoundingScope scope(one.precision);
    add_visible(visible_here, here.in_current_precision().zoo, name);
    add_visible(visible_there, there.in_current_precision().zoo, name);
    const RoundingScope fine(Precision{});
    add_visible(visible_in_f64, there.in_current_precision().zoo, name);
    out.findings.push_back(std::move(one.finding));
  };
  FoundStatistics found;
  add("dx", claim.dx, [&](const Case& now) {
    FoundStatistics statistics;
    Finding finding = judge_dx(now.problem, now.zoo.dx, library.dx.to_vector<double>(),
                               claim.dx.to_vector<double>(), statistics);
    if (found.text.empty()) found = std::move(statistics);  // the finest
    return finding;
  });
  add("dgamma", claim.dgamma, [&](const Case& now) {
    std::vector<SumCandidate> candidates = now.zoo.dgamma;
    if (!found.text.empty())
      candidates.push_back({found.slip, "it has the same statistics as that dx",
                            dgamma_with(now.problem, found.statistics)});
    return judge_sum(now.problem, "dgamma", candidates, claim.dgamma.to_vector<double>());
  });
  add("dbeta", claim.dbeta, [&](const Case& now) {
    return judge_sum(now.problem, "dbeta", now.zoo.dbeta, claim.dbeta.to_vector<double>());
  });
  std::ranges::set_difference(visible_there, visible_here, std::back_inserter(out.blind));
  visible_here.merge(visible_there);
  std::ranges::set_difference(visible_in_f64, visible_here, std::back_inserter(out.rounded_away));
  propose(out, setting, inputs, proposal);
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
