// Softmax over the channels at each position (core/ops/softmax.h).
#include <algorithm>

#include "autograd/explain/steps.h"

namespace gradus::explain {

Motion derive_softmax(Derivation& out, const Layout& layout, const Library& library) {
  const Shape& shape = out.inputs.x.shape();
  const Numbers x = numbers_of(out.inputs.x), dy = numbers_of(out.inputs.dy);
  const size_t count = x.size();
  const auto set = [&](const Numbers& per_set, size_t i) { return per_set[at(layout.set, i)]; };
  Numbers max(static_cast<size_t>(layout.sets), -INFINITY);
  for (size_t i = 0; i < count; ++i) {
    Number& most = max[at(layout.set, i)];
    most.value = std::max(most.value, x[i].value);
  }
  const Numbers z = each(count, [&](size_t i) { return x[i] - set(max, i); });
  const Numbers exps = each(count, [&](size_t i) { return exp(z[i]); });
  const Numbers total = sum_over_sets(layout, exps);
  const Numbers y = each(count, [&](size_t i) { return exps[i] / set(total, i); });
  const Numbers weighted = each(count, [&](size_t i) { return dy[i] * y[i]; });
  const Numbers sum = sum_over_sets(layout, weighted);
  const Numbers dx = each(count, [&](size_t i) { return y[i] * (dy[i] - set(sum, i)); });

  StepList forward(out, Phase::forward);
  forward.add("max", layout.per_set, max, "max = max x over the channels",
              "Taken away from x, so that exp never overflows; y does not see it.");
  forward.add("z", shape, z, "z = x - max", "At most 0.");
  forward.add("exp", shape, exps, "exp = e^z", "Between 0 and 1, and 1 at the largest x.");
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

  const Numbers ones = sum_over_sets(layout, with_library(y, library.y));
  add_invariant(out, "Σ y = 1 over the channels", "y is a distribution.",
                each(ones.size(), [&](size_t s) { return ones[s] - 1; }));
  add_invariant(out, "Σ dx = 0 over the channels",
                "Adding one number to all channels changes nothing.",
                sum_over_sets(layout, with_library(dx, library.dx)));
  out.notes.push_back("The backward starts from y alone: x and max are not saved.");
  const Values terms = each(count, [&](size_t i) {
    return std::abs(weighted[i].value) + std::abs((y[i] * set(sum, i)).value);
  });
  return {.y = y, .dx = {dx, terms}, .dgamma = {}, .dbeta = {}, .scale = Values(count, 1.0)};
}

}  // namespace gradus::explain
