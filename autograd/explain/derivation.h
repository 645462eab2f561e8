// The backward of a normalization, derived step by step in numbers for one small tensor: what
// `gradus explain` prints and the lessons show.
//
//   Setting setting{.layer = Layer::group_norm, .groups = 2};
//   Derivation d = derive(setting, draw_inputs(setting, default_shape(setting), 0));
//   for (const Step& step : d.steps) print(step.name, step.formula, step.why, step.value);
//
// Everything is f64 on the CPU. Each step is computed by plain loops from its formula, and beside
// it stands how far it is from what gradus's own kernels give. All tensors are contiguous.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "autograd/explain/setting.h"

namespace gradus::explain {

enum class Phase : uint8_t { forward, backward };

// A difference is compared with its bound, which is what rounding, by the rules of rounding.h, may
// make of these very numbers: it knows how far x lies from 0, and what cancels. One that is
// infinite proves nothing: neither that it holds, nor that it does not. From good to bad:
enum class Verdict : uint8_t { holds, unknown, fails, not_finite };
inline Verdict verdict_of(double difference, double bound) {
  if (std::isnan(difference)) return Verdict::not_finite;
  if (!std::isfinite(bound)) return Verdict::unknown;
  return difference <= bound ? Verdict::holds : Verdict::fails;
}

// The one with the worst verdict, and of these the one that is nearest to its bound, or furthest
// above.
struct Worst {
  double difference = 0, bound = 0;
};
Worst worst_of(const std::vector<double>& differences, const std::vector<double>& bounds);

// One line of the derivation. `name` is the letter of the code:
//   five norms  mu var rstd xhat y running_mean running_var | d m1 m2 direct mean projection dx
//               dgamma dbeta          (rms_norm: no mu, m1, mean, dbeta; running: batch_norm)
//               evaluation: mu var rstd xhat y | d dx dgamma dbeta
//   local_response_norm  squares denom power y | direct t sum neighbours dx
//   softmax2d            max z exp total y | weighted sum dx
// Shapes: mu var rstd m1 m2: Layout::per_set. dgamma, dbeta and running ones: Layout::per_param.
// softmax2d's max, total and sum: [n, positions]. All others are like x; m1 and m2 are spread over
// their set in `mean` and `projection`.
struct Step {
  Phase phase;
  std::string name;
  std::string formula;  // "m1 = Σ d / m"
  std::string why;      // one sentence
  Tensor value;
  std::string against = {};  // what gradus has of the same: "saved mean"; empty where nothing
  double difference = 0;     // from it, of the element where that is nearest to its bound
  double bound = 0;
  Verdict verdict() const { return verdict_of(difference, bound); }
};

// A tensor that the forward keeps for the backward.
struct SavedTensor {
  std::string name;
  Tensor value;
  std::string why;
};

// The gradient that gradus's backward gives, and central differences of its forward.
struct Gradient {
  std::string name;  // "dx", "dgamma", "dbeta"
  Tensor value;
  Tensor finite;
  // Of each element: what rounding of the forward, and the finite step, may make of the difference
  // between the two; infinite where that is no less than what adds up to the gradient, so that
  // any would pass.
  std::vector<double> bounds;
  double difference = 0, bound = 0;  // of the element where it is nearest to its bound
  // Of a gradient in place of `value`.
  Worst worst(const Tensor& gradient) const;
  Verdict verdict() const { return verdict_of(difference, bound); }
};

// Something that holds for every set. value: the largest magnitude of what should be 0, at the set
// where it is nearest to its bound, which is what eps leaves and what rounding may add.
struct Invariant {
  std::string text;  // "Σ dx = 0 over each set"
  std::string why;
  double value;
  double bound;
  Verdict verdict() const { return verdict_of(value, bound); }
};

// What overflows in half precision, by example: f16 numbers as f64. Undefined tensors where
// nothing does.
struct HalfNote {
  std::string text;
  Tensor x;        // values that f16 holds well
  Tensor squares;  // of x - mu, or softmax2d's exp(x), taken in f16: with infinities
  Tensor wrong;    // y by way of them
  Tensor right;    // y as gradus computes it from the same f16 values
};

struct Derivation {
  Setting setting;
  Inputs inputs;
  int64_t m;       // elements of a set
  Tensor sets;     // i64, like x: the number of the set that the element belongs to
  Tensor windows;  // i64, [c, 4], local_response_norm only: first and one past the last channel of
                   // the window of each channel, and the same of its mirrored window
  std::vector<Step> steps;
  std::vector<SavedTensor> saved;
  std::vector<Gradient> gradients;
  std::vector<Invariant> invariants;
  std::vector<std::string> notes;  // "In evaluation: dx = rstd·d, since ..."
  HalfNote half;

  const Step& step(std::string_view name) const;  // throws invalid_argument where there is none
};

// Throws invalid_argument for an x of more than kMostDerived elements: moving each of them to
// measure its gradient takes time with the square of their number.
inline constexpr int64_t kMostDerived = 8192;
void check_derivable(const Setting& setting, const Shape& x);

// Inputs that are not given are drawn (complete(), seed 0). Throws invalid_argument for tensors
// that do not fit the setting, and as check_derivable() does.
Derivation derive(const Setting& setting, Inputs inputs);

}  // namespace gradus::explain
