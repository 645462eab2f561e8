// Slips of local response normalization.
#include <algorithm>
#include <utility>

#include "autograd/explain/slips.h"

namespace gradus::explain {
namespace {

// The formula of core/ops/local_response_norm.h with switches.
struct Formula {
  int64_t before, after;               // channels of the forward's window below and above
  int64_t mirrored_down, mirrored_up;  // of the backward's
  double divisor;                      // of alpha; 0: the channels in range
  double power = 0;              // of the second term's denominator, less that of the right one
  bool border_repeated = false;  // channels outside repeat the border's
};

std::vector<Term> terms_of(const Problem& p, const Formula& f) {
  const Setting& o = p.setting;
  const int64_t c = p.shape[1], s = p.shape.numel() / (p.shape[0] * c);
  const size_t count = p.x.size();
  const auto channel = [&](size_t i) { return static_cast<int64_t>(i) / s % c; };
  const auto sibling = [&](size_t i, int64_t k) {
    return static_cast<size_t>(static_cast<int64_t>(i) + (k - channel(i)) * s);
  };
  const Numbers denom = each(count, [&](size_t i) {
    Sum squares;
    double inside = 0;
    const int64_t begin = channel(i) - f.before, end = channel(i) + f.after + 1;
    for (int64_t j = std::max<int64_t>(0, begin); j < std::min(c, end); ++j) {
      const Number& x = p.x[sibling(i, j)];
      squares.add(x * x);
      inside += 1;
    }
    if (f.border_repeated) {
      for (const auto& [beyond, border] :
           {std::pair(-begin, int64_t{0}), std::pair(end - c, c - 1)}) {
        const Number& x = p.x[sibling(i, border)];
        if (beyond > 0) squares.add(Number(static_cast<double>(beyond)) * x * x);
      }
    }
    return o.k + o.alpha / (f.divisor > 0 ? f.divisor : inside) * squares.total();
  });
  const double scale = o.alpha / (f.divisor > 0 ? f.divisor : static_cast<double>(o.size));
  const Numbers direct = each(count, [&](size_t i) { return p.dy[i] * pow(denom[i], -o.beta); });
  const Numbers neighbours = each(count, [&](size_t i) {
    Sum sum;
    for (int64_t j = std::max<int64_t>(0, channel(i) - f.mirrored_down);
         j <= std::min(c - 1, channel(i) + f.mirrored_up); ++j) {
      const size_t at = sibling(i, j);
      sum.add(direct[at] * p.x[at] * pow(denom[at], f.power - 1));
    }
    return -2 * o.beta * scale * p.x[i] * sum.total();
  });
  return {{"direct", direct}, {"neighbours", neighbours}};
}

}  // namespace

std::vector<Candidate> response_candidates(const Problem& p) {
  const double size = static_cast<double>(p.setting.size);
  const int64_t before = p.setting.size / 2, after = p.setting.size - before - 1;
  const Formula right{before, after, after, before, size};
  std::vector<Candidate> out{{Slip::none, "right", terms_of(p, right)}};
  const auto add = [&](Slip slip, std::string text, const Formula& formula) {
    out.push_back({slip, std::move(text), terms_of(p, formula)});
  };
  out.push_back({Slip::neighbours_missing,
                 "only the direct term is there: x also acts through the denominators of all "
                 "windows that hold it",
                 {out[0].terms[0]}});
  out.push_back(
      {Slip::direct_missing, "the direct term dy·denom^-beta is missing", {out[0].terms[1]}});
  add(Slip::window_not_mirrored,
      "the backward adds over the forward's window: it must be mirrored, which differs for even "
      "sizes",
      {before, after, before, after, size});
  add(Slip::window_on_other_side,
      "the window reaches further up than down: for even sizes it is [c - size/2, c + size/2)",
      {after, before, before, after, size});
  add(Slip::alpha_undivided, "alpha is not divided by size", {before, after, after, before, 1});
  add(Slip::alpha_by_channels_in_range,
      "alpha is divided by the number of channels in range: it is size at the borders, too",
      {before, after, after, before, 0});
  Formula same = right;
  same.power = 1;
  add(Slip::wrong_power, "the second term has denom^-beta: it is denom^(-beta - 1)", same);
  Formula repeated = right;
  repeated.border_repeated = true;
  add(Slip::border_repeated,
      "channels outside the tensor repeat the one at the border: they count as 0", repeated);
  return out;
}

}  // namespace gradus::explain
