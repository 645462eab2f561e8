// Local response normalization (core/ops/local_response_norm.h).
#include <algorithm>

#include "autograd/explain/steps.h"

namespace gradus::explain {
namespace {

// Scaling a whole column scales y, but for k: Σ x·dx = Σ dy·y·(1 - 2·beta·(denom - k)/denom). Both
// sides add up terms of dy·y and of that share of it; beta enlarges the rounding of denom.
void add_scaling(Derivation& out, const Layout& layout, const Values& dx, const Values& products,
                 const Values& denom) {
  const Values x = out.inputs.x.to_vector<double>();
  const Setting& o = out.setting;
  Values terms(x.size()), sizes(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double share = 2 * o.beta * (denom[i] - o.k) / denom[i];
    terms[i] = x[i] * dx[i] - products[i] * (1 - share);
    sizes[i] = 2 * std::abs(products[i]) * (1 + share);
  }
  const Values sums = sum_over_sets(layout, terms), scales = sum_over_sets(layout, sizes);
  add_invariant(out, "Σ x·dx = Σ dy·y·(1 - 2·beta·(denom - k)/denom) over each column",
                "Both say how far scaling the whole column moves the loss.", sums,
                each(sums.size(), [&](size_t s) {
                  return rounding_bound(layout.m * o.size, (1 + o.beta) * scales[s] + 1e-300);
                }));
}

}  // namespace

Values window_sums(const Shape& shape, int64_t below, int64_t above, const Values& values) {
  const int64_t c = shape[1], s = shape.numel() / (shape[0] * c);
  return each(values.size(), [&](size_t i) {
    const int64_t index = static_cast<int64_t>(i), k = index / s % c;
    double sum = 0;
    for (int64_t j = std::max<int64_t>(0, k - below); j <= std::min(c - 1, k + above); ++j)
      sum += values[static_cast<size_t>(index + (j - k) * s)];
    return sum;
  });
}

void derive_response(Derivation& out, const Layout& layout, const Library& library) {
  const Setting& o = out.setting;
  const Shape& shape = out.inputs.x.shape();
  const Values x = out.inputs.x.to_vector<double>(), dy = out.inputs.dy.to_vector<double>();
  const size_t count = x.size();
  const double scale = o.alpha / static_cast<double>(o.size);
  const int64_t below = o.size / 2, above = o.size - below - 1;
  const Values squares =
      window_sums(shape, below, above, each(count, [&](size_t i) { return x[i] * x[i]; }));
  const Values denom = each(count, [&](size_t i) { return o.k + scale * squares[i]; });
  const Values power = each(count, [&](size_t i) { return std::pow(denom[i], -o.beta); });
  const Values y = each(count, [&](size_t i) { return x[i] * power[i]; });
  const Values direct = each(count, [&](size_t i) { return dy[i] * power[i]; });
  const Values t = each(count, [&](size_t i) { return direct[i] * x[i] / denom[i]; });
  const Values sum = window_sums(shape, above, below, t);
  const Values neighbours =
      each(count, [&](size_t i) { return -2 * o.beta * scale * x[i] * sum[i]; });

  StepList forward(out, Phase::forward);
  forward.add("squares", shape, squares, "squares = Σ x² over the window",
              "The window of a channel: its neighbours at the same position; channels outside the "
              "tensor count as 0.");
  forward.add("denom", shape, denom, "denom = k + alpha/size·squares",
              "alpha is divided by size at the borders, too.", library.denom,
              "local_response_norm_denom");
  forward.add("power", shape, power, "power = denom^-beta",
              "What x is multiplied with: the louder the neighbours, the smaller.");
  forward.add("y", shape, y, "y = x·power", "Each value is damped by its neighbourhood.", library.y,
              "y");
  StepList backward(out, Phase::backward);
  backward.add("direct", shape, direct, "direct = dy·power",
               "What dx would be if the denominators were constants.");
  backward.add("t", shape, t, "t = direct·x/denom",
               "How far the denominator of this channel moves the loss, but for constants.");
  backward.add("sum", shape, sum, "sum = Σ t over the mirrored window",
               "x acts on the channels whose windows hold it: the window the other way round, "
               "which differs for even sizes.");
  backward.add("neighbours", shape, neighbours, "neighbours = -2·beta·alpha/size·x·sum",
               "The path through the denominators; the 2 is that of the square.");
  backward.add("dx", shape, each(count, [&](size_t i) { return direct[i] + neighbours[i]; }),
               "dx = direct + neighbours", "x acts through its own numerator and all denominators.",
               library.dx, "dx");
  out.saved.push_back({"x", out.inputs.x, "The denominators are computed from it again."});
  add_scaling(out, layout, library.dx.to_vector<double>(),
              each(count, [&](size_t i) { return dy[i] * y[i]; }), denom);
  out.notes.push_back(
      "An even size reaches one channel further down than up; the mirrored window of the backward "
      "one further up than down.");
}

}  // namespace gradus::explain
