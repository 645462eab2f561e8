// Clipping many gradients at once: by their common norm, or each value by itself.
#pragma once

#include <cmath>
#include <span>
#include <vector>

#include "core/backend.h"

namespace gradus {

enum class GradNorm : uint8_t { one, two, infinity };

// With all values of all gradients as one vector, in f64:
//   norm  = Σ |g|, sqrt(Σ g²) or max |g| (NaN where one is NaN; 0 of no values)
//   scale = min(1, max_norm/(norm + 1e-6)), NaN for NaN
//   g     = g·scale, rounded to the gradient's dtype; left alone where scale is 1
// Source: https://pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
struct ClipGradNorm {
  static constexpr std::string_view name = "clip_grad_norm";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  std::span<const AnyView> grads;  // dense in any format and order; of any floating dtypes
  AnyView norm;                    // [], f64
  double max_norm = 1.0;
  GradNorm kind = GradNorm::two;

  DType dtype() const { return norm.dtype; }
  std::vector<const AnyView*> views() const {
    std::vector<const AnyView*> all{&norm};
    for (const AnyView& grad : grads) all.push_back(&grad);
    return all;
  }
  int64_t bytes() const {  // where they are clipped
    int64_t total = norm.nbytes();
    for (const AnyView& grad : grads) total += 3 * grad.nbytes();
    return total;
  }
  int64_t flops() const {
    int64_t total = 0;
    for (const AnyView& grad : grads) total += 3 * grad.numel();
    return total;
  }
  static Guarantee guarantee() { return {.accumulator = "f64"}; }
};

// g = min(max(g, -limit), limit) in the gradient's dtype; NaN stays NaN.
struct ClipGradValue {
  static constexpr std::string_view name = "clip_grad_value";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  std::span<const AnyView> grads;  // at least one, as above
  double limit = 1.0;

  DType dtype() const { return grads.front().dtype; }
  std::vector<const AnyView*> views() const {
    std::vector<const AnyView*> all;
    for (const AnyView& grad : grads) all.push_back(&grad);
    return all;
  }
  int64_t bytes() const {
    int64_t total = 0;
    for (const AnyView& grad : grads) total += 2 * grad.nbytes();
    return total;
  }
  int64_t flops() const {
    int64_t total = 0;
    for (const AnyView& grad : grads) total += 2 * grad.numel();
    return total;
  }
  static Guarantee guarantee() { return {}; }
};

void run(Cpu&, const ClipGradNorm&);
void run(Cpu&, const ClipGradValue&);
void run(Cuda&, const ClipGradNorm&);
void run(Cuda&, const ClipGradValue&);

// The formulas for one element, written once: what it adds, how two such are combined, and the norm
// of all.
GRADUS_HD double grad_norm_term(GradNorm kind, double g) {
  return kind == GradNorm::two ? g * g : std::fabs(g);
}
GRADUS_HD double grad_norm_combine(GradNorm kind, double a, double b) {
  if (kind != GradNorm::infinity) return a + b;
  return a > b || a != a ? a : b;
}
GRADUS_HD double grad_norm_of(GradNorm kind, double total) {
  return kind == GradNorm::two ? std::sqrt(total) : total;
}
GRADUS_HD double grad_scale(double norm, double max_norm) {
  if (max_norm == HUGE_VAL) return 1.0;  // measures only: inf / inf would be NaN
  const double scale = max_norm / (norm + 1e-6);
  return scale > 1.0 ? 1.0 : scale;
}
template <class A>
GRADUS_HD A clip_value(A g, A limit) {
  return g > limit ? limit : g < -limit ? -limit : g;
}

}  // namespace gradus
