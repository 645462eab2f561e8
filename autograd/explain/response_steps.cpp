// Local response normalization (core/ops/local_response_norm.h).
#include <algorithm>

#include "autograd/explain/steps.h"

namespace gradus::explain {
namespace {

// Scaling a whole column scales y, but for k: Σ x·dx = Σ dy·y·(1 - 2·beta·(denom - k)/denom).
void add_scaling(Derivation& out, const Layout& layout, const Numbers& dx, const Numbers& products,
                 const Numbers& squares, const Numbers& denom) {
  const Numbers x = numbers_of(out.inputs.x);
  const Setting& o = out.setting;
  const double scale = o.alpha / static_cast<double>(o.size);
  add_invariant(out, "Σ x·dx = Σ dy·y·(1 - 2·beta·(denom - k)/denom) over each column",
                "Both say how far scaling the whole column moves the loss.",
                sum_over_sets(layout, each(x.size(), [&](size_t i) {
                                const Number share = 2 * o.beta * (scale * squares[i]) / denom[i];
                                return x[i] * dx[i] - products[i] * (1 - share);
                              })));
}

// How far each x must move for a denominator that holds it to change by much, and its power.
Values scale_of(const Setting& o, const Shape& shape, const Numbers& denom) {
  const int64_t c = shape[1], s = shape.numel() / (shape[0] * c);
  const int64_t below = o.size / 2, above = o.size - below - 1;
  return each(denom.size(), [&](size_t i) {
    const int64_t index = static_cast<int64_t>(i), k = index / s % c;
    double least = INFINITY;
    for (int64_t j = std::max<int64_t>(0, k - above); j <= std::min(c - 1, k + below); ++j)
      least = std::min(least, denom[static_cast<size_t>(index + (j - k) * s)].value);
    return std::sqrt(least / o.alpha * static_cast<double>(o.size)) / (1 + o.beta);
  });
}

}  // namespace

Numbers window_sums(const Shape& shape, int64_t below, int64_t above, const Numbers& values) {
  const int64_t c = shape[1], s = shape.numel() / (shape[0] * c);
  return each(values.size(), [&](size_t i) {
    const int64_t index = static_cast<int64_t>(i), k = index / s % c;
    Sum sum;
    for (int64_t j = std::max<int64_t>(0, k - below); j <= std::min(c - 1, k + above); ++j)
      sum.add(values[static_cast<size_t>(index + (j - k) * s)]);
    return sum.total();
  });
}

Motion derive_response(Derivation& out, const Layout& layout, const Library& library) {
  const Setting& o = out.setting;
  const Shape& shape = out.inputs.x.shape();
  const Numbers x = numbers_of(out.inputs.x), dy = numbers_of(out.inputs.dy);
  const size_t count = x.size();
  const double scale = o.alpha / static_cast<double>(o.size);
  const int64_t below = o.size / 2, above = o.size - below - 1;
  const Numbers squares =
      window_sums(shape, below, above, each(count, [&](size_t i) { return x[i] * x[i]; }));
  const Numbers denom = each(count, [&](size_t i) { return o.k + scale * squares[i]; });
  const Numbers power = each(count, [&](size_t i) { return pow(denom[i], -o.beta); });
  const Numbers y = each(count, [&](size_t i) { return x[i] * power[i]; });
  const Numbers direct = each(count, [&](size_t i) { return dy[i] * power[i]; });
  const Numbers t = each(count, [&](size_t i) { return direct[i] * x[i] / denom[i]; });
  const Numbers sum = window_sums(shape, above, below, t);
  const Numbers neighbours =
      each(count, [&](size_t i) { return -2 * o.beta * scale * x[i] * sum[i]; });
  const Numbers dx = each(count, [&](size_t i) { return direct[i] + neighbours[i]; });

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
  backward.add("dx", shape, dx, "dx = direct + neighbours",
               "x acts through its own numerator and all denominators.", library.dx, "dx");
  out.saved.push_back({"x", out.inputs.x, "The denominators are computed from it again."});
  add_scaling(out, layout, with_library(dx, library.dx),
              each(count, [&](size_t i) { return dy[i] * y[i]; }), squares, denom);
  out.notes.push_back(
      "An even size reaches one channel further down than up; the mirrored window of the backward "
      "one further up than down.");
  const Numbers sizes = each(count, [&](size_t i) { return Number(std::abs(direct[i].value)); });
  return {.y = y,
          .dx = {dx, values_of(window_sums(shape, above, below, sizes))},
          .dgamma = {},
          .dbeta = {},
          .scale = scale_of(o, shape, denom)};
}

}  // namespace gradus::explain
