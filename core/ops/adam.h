// One step of Adam or AdamW over many parameters at once.
#pragma once

#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "core/backend.h"

namespace gradus {

// One parameter: all views are dense in the same format.
struct AdamTensor {
  AnyView p;           // any shape
  AnyView dp;          // like p
  AnyView exp_avg;     // like p, acc_dtype(p.dtype)
  AnyView exp_avg_sq;  // like exp_avg
  int64_t born = 0;    // steps begun without this parameter
};

struct AdamSettings {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  bool decoupled = false;  // the decay of AdamW
  double lr_scale = 1.0;   // the rate is lr_scale·lr
};

// With t the steps of this parameter, this one included, all arithmetic in acc_dtype(p.dtype) (1 -
// beta^t and the factors made of it in f64) and one rounding to p's dtype:
//   g   = dp + weight_decay·p                           Adam; dp itself without decay
//   g   = dp,  p = p·(1 - lr·weight_decay)              AdamW
//   exp_avg    = beta1·exp_avg + (1 - beta1)·g
//   exp_avg_sq = beta2·exp_avg_sq + (1 - beta2)·g²
//   p   = p - lr/(1 - beta1^t)·exp_avg / (sqrt(exp_avg_sq)/sqrt(1 - beta2^t) + eps)
// Sources: https://pytorch.org/docs/stable/generated/torch.optim.Adam.html and AdamW.html.
//
// Nothing is changed once failed_step is 0 or more: a step whose loss was not finite has set it.
struct AdamStep {
  static constexpr std::string_view name = "adam_step";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  std::span<const AdamTensor> tensors;  // at least one, all of one dtype
  AnyView lr;                           // [1], f64
  AnyView step;                         // [1], i64: steps begun, this one included
  AnyView failed_step;                  // [1], i64; may be not given
  AdamSettings settings;

  DType dtype() const { return tensors.front().p.dtype; }
  std::vector<const AnyView*> views() const {
    std::vector<const AnyView*> all{&lr, &step, &failed_step};
    for (const AdamTensor& t : tensors) {
      all.insert(all.end(), {&t.p, &t.dp, &t.exp_avg, &t.exp_avg_sq});
    }
    return all;
  }
  int64_t bytes() const {
    int64_t total = 0;
    for (const AdamTensor& t : tensors) {
      total +=
          2 * t.p.nbytes() + t.dp.nbytes() + 2 * t.exp_avg.nbytes() + 2 * t.exp_avg_sq.nbytes();
    }
    return total;
  }
  int64_t flops() const {
    int64_t total = 0;
    for (const AdamTensor& t : tensors) total += 14 * t.p.numel();
    return total;
  }
  static Guarantee guarantee() { return {}; }
};

void run(Cpu&, const AdamStep&);
void run(Cuda&, const AdamStep&);

// The numbers of one parameter's step in the type that they are used in.
template <class A>
struct AdamNumbers {
  A beta1, one_minus_beta1, beta2, one_minus_beta2, eps;
  A decay;      // weight_decay of Adam, 0 of AdamW
  A keep;       // 1 - lr·weight_decay of AdamW, 1 of Adam
  A step_size;  // lr/(1 - beta1^t)
  A root;       // 1/sqrt(1 - beta2^t)
};

// An eps that is too small for A is its smallest number: 0/(0 + eps) stays 0.
template <class A>
GRADUS_HD A adam_eps(double eps) {
  const A rounded = static_cast<A>(eps);
  return rounded == 0 && eps > 0 ? std::numeric_limits<A>::denorm_min() : rounded;
}

template <class A>
GRADUS_HD AdamNumbers<A> adam_numbers(const AdamSettings& s, double lr, int64_t t) {
  const double rate = s.lr_scale * lr, power = static_cast<double>(t);
  return {static_cast<A>(s.beta1),
          static_cast<A>(1.0 - s.beta1),
          static_cast<A>(s.beta2),
          static_cast<A>(1.0 - s.beta2),
          adam_eps<A>(s.eps),
          static_cast<A>(s.decoupled ? 0.0 : s.weight_decay),
          static_cast<A>(s.decoupled ? 1.0 - rate * s.weight_decay : 1.0),
          static_cast<A>(rate / (1.0 - std::pow(s.beta1, power))),
          static_cast<A>(1.0 / std::sqrt(1.0 - std::pow(s.beta2, power)))};
}

// The formula for one element, written once: gives the new p and writes the new moments.
template <class A>
GRADUS_HD A adam_element(const AdamNumbers<A>& k, A p, A dp, A& exp_avg, A& exp_avg_sq) {
  const A g = k.decay == 0 ? dp : dp + k.decay * p;  // 0·p is NaN where p is infinite
  exp_avg = k.beta1 * exp_avg + k.one_minus_beta1 * g;
  exp_avg_sq = k.beta2 * exp_avg_sq + k.one_minus_beta2 * g * g;
  return p * k.keep - k.step_size * exp_avg / (std::sqrt(exp_avg_sq) * k.root + k.eps);
}

}  // namespace gradus
