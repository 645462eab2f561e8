// Losses of a value x and a target t, element by element: mean squared error, L1, smooth L1 and
// binary cross-entropy of logits. Each is one struct over a value type as
// core/ops/activation_math.h has it, shared by both backends.
//
//   none: loss_i = weight_i·f(x_i, t_i);   sum: Σ loss_i;   mean: Σ loss_i / count
//
// backward, with d_i = dy_i for none, dy for sum and dy·(1 / count) for mean
//   dx_i = d_i·weight_i·f'_x(x_i, t_i),   dt_i = d_i·weight_i·f'_t(x_i, t_i)
//
// Formulas: https://pytorch.org/docs/stable/nn.html#loss-functions. Saved for backward: x and t.
#pragma once

#include <limits>

#include "core/backend.h"
#include "core/ops/activation_math.h"
#include "core/ops/reduction.h"

namespace gradus {

// The numbers that a loss takes besides x and t, for one element.
template <class V>
struct LossNumbers {
  V beta;        // of smooth L1
  V per_beta;    // 1 / beta
  V pos_weight;  // of binary cross-entropy
};

// beta as it is computed with: 0 where 1 / beta would be infinite.
template <class A>
GRADUS_HD A usable_beta(double beta) {
  const A value = static_cast<A>(beta);
  return A(1) / value > std::numeric_limits<A>::max() ? A(0) : value;
}

namespace detail {
// The sign of d; 0 at 0 and NaN for NaN.
template <class V>
GRADUS_HD V sign(V d) {
  return select(d > V(0), V(1), select(d < V(0), V(-1), d));
}
// factor·v, where a factor of 0 takes away an infinite v (and NaN).
template <class V>
GRADUS_HD V share(V factor, V v) {
  return select((factor > V(0)) | (factor < V(0)), factor * v, factor);
}
}  // namespace detail

// f = (x - t)²
struct MseLoss {
  static constexpr std::string_view name = "mse_loss";
  static constexpr bool weighted = false;
  template <class V>
  GRADUS_HD static V f(V x, V t, const LossNumbers<V>&) {
    return (x - t) * (x - t);
  }
  template <class V>
  GRADUS_HD static V dx(V x, V t, const LossNumbers<V>&) {
    return V(2) * (x - t);
  }
  template <class V>
  GRADUS_HD static V dt(V x, V t, const LossNumbers<V>&) {
    return V(2) * (t - x);
  }
};

// f = |x - t|, of which the gradient at x = t is 0.
struct L1Loss {
  static constexpr std::string_view name = "l1_loss";
  static constexpr bool weighted = false;
  template <class V>
  GRADUS_HD static V f(V x, V t, const LossNumbers<V>&) {
    return abs_of(x - t);
  }
  template <class V>
  GRADUS_HD static V dx(V x, V t, const LossNumbers<V>&) {
    return detail::sign(x - t);
  }
  template <class V>
  GRADUS_HD static V dt(V x, V t, const LossNumbers<V>&) {
    return detail::sign(t - x);
  }
};

// With d = x - t: f = d²/(2·beta) where |d| < beta, else |d| - beta/2; L1 where beta is 0.
struct SmoothL1Loss {
  static constexpr std::string_view name = "smooth_l1_loss";
  static constexpr bool weighted = false;
  template <class V>
  GRADUS_HD static V f(V x, V t, const LossNumbers<V>& k) {
    const V d = abs_of(x - t);
    return select(d < k.beta, V(0.5) * d * (d * k.per_beta), d - V(0.5) * k.beta);
  }
  template <class V>
  GRADUS_HD static V dx(V x, V t, const LossNumbers<V>& k) {
    const V d = x - t;
    return select(abs_of(d) < k.beta, d * k.per_beta, detail::sign(d));
  }
  template <class V>
  GRADUS_HD static V dt(V x, V t, const LossNumbers<V>& k) {
    return dx(t, x, k);
  }
};

// With s the sigmoid, p = pos_weight and softplus(x) = log(1 + exp(x)) = -log s(-x):
//   f    = -(p·t·log s(x) + (1 - t)·log(1 - s(x))) = p·t·softplus(-x) + (1 - t)·softplus(x)
//   f'_x = (1 - t)·s(x) - p·t·s(-x)
//   f'_t = p·softplus(-x) - softplus(x) = (p - 1)·softplus(-x) - x
// from e = exp(-|x|), so that nothing overflows or cancels. A factor t or 1 - t of 0 wins over an
// infinite softplus: a logit of ±inf that is right costs 0, one that is wrong inf.
struct BceWithLogitsLoss {
  static constexpr std::string_view name = "binary_cross_entropy_with_logits";
  static constexpr bool weighted = true;
  template <class V>
  GRADUS_HD static V f(V x, V t, const LossNumbers<V>& k) {
    const V tail = log1p_of(exp_of(-abs_of(x)));
    const V plus = select(x > V(0), x, V(0)) + tail, minus = select(x < V(0), -x, V(0)) + tail;
    const V loss = detail::share(k.pos_weight * t, minus) + detail::share(V(1) - t, plus);
    return fused(tail, V(0), loss);  // NaN where x is, even if both factors are 0
  }
  template <class V>
  GRADUS_HD static V dx(V x, V t, const LossNumbers<V>& k) {
    const V e = exp_of(-abs_of(x));
    const V near = reciprocal_of(V(1) + e), far = e * near;  // s(|x|), s(-|x|)
    const V plus = select(x > V(0), near, far), minus = select(x > V(0), far, near);
    return (V(1) - t) * plus - k.pos_weight * t * minus;
  }
  template <class V>
  GRADUS_HD static V dt(V x, V, const LossNumbers<V>& k) {
    const V tail = log1p_of(exp_of(-abs_of(x)));
    return detail::share(k.pos_weight - V(1), select(x < V(0), -x, V(0)) + tail) - x;
  }
};

using PointwiseLosses = TypeList<MseLoss, L1Loss, SmoothL1Loss, BceWithLogitsLoss>;

// An entry of `PointwiseLosses`, by its place there.
enum class PointwiseLoss : uint8_t { mse, l1, smooth_l1, bce_with_logits };

namespace detail {
template <class... Fs, class G>
void visit_loss(TypeList<Fs...>, PointwiseLoss loss, G&& g) {
  uint8_t index = 0;
  ((static_cast<uint8_t>(loss) == index++ ? g(Type<Fs>{}) : void()), ...);
}
}  // namespace detail

// Calls g(Type<F>{}) for the struct F that `loss` stands for.
template <class G>
void visit_loss(PointwiseLoss loss, G&& g) {
  detail::visit_loss(PointwiseLosses{}, loss, g);
}

struct PointwiseLossForward {
  static constexpr std::string_view name = "pointwise_loss_forward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  PointwiseLoss kind = PointwiseLoss::mse;
  AnyView x;           // any shape and strides
  AnyView t;           // the shape and dtype of x, any strides
  AnyView weight;      // acc, broadcasts to x; may be not given
  AnyView pos_weight;  // the same
  AnyView loss;        // acc; the shape of x, dense, for none, else []
  Reduction reduction = Reduction::mean;
  double beta = 1.0;

  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, t, weight, pos_weight, loss); }
  int64_t bytes() const {
    return x.nbytes() + t.nbytes() + weight.nbytes() + pos_weight.nbytes() + loss.nbytes();
  }
  int64_t flops() const { return 3 * x.numel(); }
  static Guarantee guarantee() { return {.accumulator = "acc_t per tile, f64 over tiles"}; }
};

struct PointwiseLossBackward {
  static constexpr std::string_view name = "pointwise_loss_backward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  PointwiseLoss kind = PointwiseLoss::mse;
  AnyView x;  // as in the forward pass
  AnyView t;
  AnyView weight;
  AnyView pos_weight;
  AnyView dy;  // acc; the shape of x with any strides for none, else []
  AnyView dx;  // like x, dense; may be not given
  AnyView dt;  // like x, dense; may be not given
  Reduction reduction = Reduction::mean;
  double beta = 1.0;

  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, t, weight, pos_weight, dy, dx, dt); }
  int64_t bytes() const {
    return x.nbytes() + t.nbytes() + weight.nbytes() + pos_weight.nbytes() + dy.nbytes() +
           dx.nbytes() + dt.nbytes();
  }
  int64_t flops() const { return 4 * x.numel(); }
  static Guarantee guarantee() { return {}; }
};

void run(Cpu&, const PointwiseLossForward&);
void run(Cpu&, const PointwiseLossBackward&);
void run(Cuda&, const PointwiseLossForward&);
void run(Cuda&, const PointwiseLossBackward&);

}  // namespace gradus
