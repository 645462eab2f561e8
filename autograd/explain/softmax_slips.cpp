// Slips of softmax over the channels.
#include "autograd/explain/slips.h"

namespace gradus::explain {
namespace {

Numbers negated(Numbers values) {
  for (Number& value : values) value = -value;
  return values;
}

// The number of the element's set for sums over the axes that are set in `over`.
Sets sets_over(const Problem& p, unsigned over) {
  std::vector<int64_t> keys(p.x.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i), scale = 1;
    for (int axis = p.shape.rank() - 1; axis >= 0; --axis) {
      if ((over >> axis & 1U) == 0) keys[i] += rest % p.shape[axis] * scale;
      scale *= p.shape[axis];
      rest /= p.shape[axis];
    }
  }
  return sets_of(std::move(keys));
}

void add_other_axes(std::vector<Candidate>& out, const Problem& p, const Numbers& y) {
  const Numbers weighted = product(p.dy, y);
  const auto add = [&](std::string text, unsigned axes) {
    out.push_back({Slip::wrong_set,
                   std::move(text),
                   {{"direct", weighted},
                    {"sum", negated(product(y, sum_over(sets_over(p, axes), weighted)))}}});
  };
  for (int axis = 2; axis < p.shape.rank(); ++axis)
    add(concat("the sum runs over axis ", axis, " instead of the channels, axis 1"), 1U << axis);
  add("the sum runs over the batch instead of the channels", 1U);
  add("the sum runs over the channels of all samples: each sample is by itself", 3U);
  add("the sum runs over a whole sample: each position is by itself", (1U << p.shape.rank()) - 2);
}

}  // namespace

std::vector<Candidate> softmax_candidates(const Problem& p) {
  const Sets own = sets_of(p.layout.set);
  Values max(own.count.size(), -INFINITY);
  for (size_t i = 0; i < p.x.size(); ++i)
    max[at(own.of, i)] = std::max(max[at(own.of, i)], p.x[i].value);
  const Numbers z = each(p.x.size(), [&](size_t i) { return exp(p.x[i] - max[at(own.of, i)]); });
  const Numbers total = sum_over(own, z);
  const Numbers y = each(p.x.size(), [&](size_t i) { return z[i] * pow(total[i], -1); });
  const Numbers weighted = product(p.dy, y), sum = sum_over(own, weighted),
                sum_dy = sum_over(own, p.dy);
  std::vector<Candidate> out{
      {Slip::none, "right", {{"direct", weighted}, {"sum", negated(product(y, sum))}}}};
  const auto add = [&](Slip slip, std::string text, const Numbers& first, const Numbers& second) {
    out.push_back({slip, std::move(text), {{"direct", first}, {"sum", negated(second)}}});
  };
  out.push_back({Slip::sum_missing,
                 "the sum Σ dy·y is missing: raising one x lowers all other y at the position",
                 {{"direct", weighted}}});
  add(Slip::sum_unweighted, "the sum is Σ dy: it must be Σ dy·y", weighted, product(y, sum_dy));
  add(Slip::wrong_count, "the sum is a mean over the channels: it is not divided", weighted,
      each(y.size(), [&](size_t i) { return y[i] * sum[i] * (1 / own.count[at(own.of, i)]); }));
  add(Slip::y_missing, "the factor y is missing: dx = y·(dy - Σ dy·y)", p.dy, sum);
  add(Slip::y_on_one_term, "y stands before dy only: it multiplies the sum, too", weighted, sum);
  add(Slip::log_form, "this is the gradient of log_softmax", p.dy, product(y, sum_dy));
  const int64_t c = p.shape[1], s = p.shape.numel() / (p.shape[0] * c);
  const Numbers without = each(y.size(), [&](size_t i) {
    return static_cast<int64_t>(i) / s % c == c - 1 ? Number() : weighted[i];
  });
  add(Slip::last_left_out, "the sum leaves out the last channel", weighted,
      product(y, sum_over(own, without)));
  add_other_axes(out, p, y);
  return out;
}

}  // namespace gradus::explain
