// Softmax over the channels at each position (core/ops/softmax.h).
#include <algorithm>

#include "autograd/explain/steps.h"

namespace gradus::explain {

void derive_softmax(Derivation& out, const Layout& layout, const Library& library) {
  const Shape& shape = out.inputs.x.shape();
  const Values x = out.inputs.x.to_vector<double>(), dy = out.inputs.dy.to_vector<double>();
  const size_t count = x.size();
  const auto set = [&](const Values& per_set, size_t i) { return per_set[at(layout.set, i)]; };
  Values max(static_cast<size_t>(layout.sets), -INFINITY);
  for (size_t i = 0; i < count; ++i)
    max[at(layout.set, i)] = std::max(max[at(layout.set, i)], x[i]);
  const Values z = each(count, [&](size_t i) { return x[i] - set(max, i); });
  const Values exp = each(count, [&](size_t i) { return std::exp(z[i]); });
  const Values total = sum_over_sets(layout, exp);
  const Values y = each(count, [&](size_t i) { return exp[i] / set(total, i); });
  const Values weighted = each(count, [&](size_t i) { return dy[i] * y[i]; });
  const Values sum = sum_over_sets(layout, weighted);
  const Values dx = each(count, [&](size_t i) { return y[i] * (dy[i] - set(sum, i)); });

  StepList forward(out, Phase::forward);
  forward.add("max", layout.per_set, max, "max = max x over the channels",
              "Taken away from x, so that exp never overflows; y does not see it.");
  forward.add("z", shape, z, "z = x - max", "At most 0.");
  forward.add("exp", shape, exp, "exp = e^z", "Between 0 and 1, and 1 at the largest x.");
  forward.add("total", layout.per_set, total, "total = Σ exp over the channels",
              "At least 1: nothing is divided by 0.");
  forward.add("y", shape, y, "y = exp / total", "The channels at one position sum to 1.", library.y,
              "y");
  StepList backward(out, Phase::backward);
  backward.add("weighted", shape, weighted, "weighted = dy·y", "How much each y moves the loss.");
  backward.add("sum", layout.per_set, sum, "sum = Σ weighted over the channels",
               "The part of the loss that raising all x would move: softmax takes it away.");
  backward.add("dx", shape, dx, "dx = y·(dy - sum)",
               "Raising one x raises its own y and lowers all others at the position.", library.dx,
               "dx");
  out.saved.push_back({"y", library.y, "The backward needs nothing else."});

  const Values gradient = library.dx.to_vector<double>();
  const Values sums = sum_over_sets(layout, gradient),
               ones = sum_over_sets(layout, library.y.to_vector<double>());
  Values largest(sums.size(), 1e-300);
  for (size_t i = 0; i < count; ++i) {
    double& scale = largest[at(layout.set, i)];
    scale = std::max(scale, std::abs(dy[i]));
  }
  add_invariant(out, "Σ y = 1 over the channels", "y is a distribution.",
                each(ones.size(), [&](size_t s) { return ones[s] - 1; }),
                Values(ones.size(), rounding_bound(layout.m, 1)));
  add_invariant(
      out, "Σ dx = 0 over the channels", "Adding one number to all channels changes nothing.", sums,
      each(sums.size(), [&](size_t s) { return rounding_bound(layout.m, 2 * largest[s]); }));
  out.notes.push_back("The backward starts from y alone: x and max are not saved.");
}

}  // namespace gradus::explain
