// NLL and the losses that compare x with a target value by value.
#include <cmath>

#include "tests/support/reference_broadcast.h"
#include "tests/support/reference_loss.h"

namespace gradus::ref {
namespace {

// losses [shape], and what mean divides their sum by.
Array reduced(const Shape& shape, const std::vector<Real>& losses, Real count,
              Reduction reduction) {
  const bool scalar = reduction != Reduction::none;
  Sums y(scalar ? Shape{} : shape);
  for (size_t i = 0; i < losses.size(); ++i) y.data[scalar ? 0 : i] += losses[i];
  if (reduction == Reduction::mean) y[0] /= count;
  return y.rounded();
}

// The gradient that reaches the loss of position i.
Real upstream(const Array& dy, int64_t i, Real count, Reduction reduction) {
  if (reduction == Reduction::none) return dy[i];
  return reduction == Reduction::mean ? dy[0] / count : Real(dy[0]);
}

// f(i) -> loss of element i.
template <class F>
Array pointwise(const Array& x, const Array& t, Reduction reduction, F f) {
  require(x.shape == t.shape, "loss: the target must have the shape of x");
  std::vector<Real> losses;
  for (int64_t i = 0; i < x.numel(); ++i) losses.push_back(f(i));
  return reduced(x.shape, losses, x.numel(), reduction);
}

// df(i) -> d loss of element i / d x of element i.
template <class F>
Array pointwise_backward(const Array& x, const Array& t, Reduction reduction, const Array& dy,
                         F df) {
  require(x.shape == t.shape, "loss: the target must have the shape of x");
  Array dx = zeros(x.shape);
  for (int64_t i = 0; i < x.numel(); ++i) {
    dx[i] = static_cast<double>(upstream(dy, i, x.numel(), reduction) * df(i));
  }
  return dx;
}

Real difference(const Array& x, const Array& t, int64_t i) { return Real(x[i]) - Real(t[i]); }
Real sign(Real value) { return value > 0 ? 1 : value < 0 ? -1 : value; }

Real sigmoid(Real x) { return 1 / (1 + std::exp(-x)); }
// -log(sigmoid(x)).
Real minus_log_sigmoid(Real x) {
  return x >= 0 ? std::log1p(std::exp(-x)) : -x + std::log1p(std::exp(x));
}

struct Weights {
  const Array& x;
  const Array& weight;
  const Array& pos_weight;

  Real at(const Array& array, int64_t i) const {
    return array.empty() ? Real(1) : Real(array[broadcast_index(i, x.shape, array.shape)]);
  }
};

// log_probs [n, c, ...] seen as [n, c, s]; positions are [n, s].
struct Positions {
  const Array& x;
  const Array& labels;
  const Array& weight;
  int64_t ignore_index;
  int64_t n, c, s = 1;

  Positions(const Array& log_probs, const Array& l, const Array& w, int64_t ignored)
      : x(log_probs), labels(l), weight(w), ignore_index(ignored) {
    require(x.shape.rank() >= 2, "nll: log_probs must be [n, c, ...]");
    n = x.shape[0];
    c = x.shape[1];
    for (int axis = 2; axis < x.shape.rank(); ++axis) s *= x.shape[axis];
    require(labels.numel() == n * s, "nll: labels must be [n, ...]");
    for (int64_t i = 0; i < n * s; ++i) {
      require(is_ignored(i) || (label(i) >= 0 && label(i) < c), "nll: label outside the classes");
    }
  }

  int64_t label(int64_t i) const { return static_cast<int64_t>(labels[i]); }
  bool is_ignored(int64_t i) const { return label(i) == ignore_index; }
  Real weight_of(int64_t i) const {
    if (is_ignored(i)) return 0;
    return weight.empty() ? Real(1) : Real(weight[label(i)]);
  }
  int64_t chosen(int64_t i) const { return (i / s * c + label(i)) * s + i % s; }
  Real count() const {
    Real total = 0;
    for (int64_t i = 0; i < n * s; ++i) total += weight_of(i);
    return total;
  }
};

}  // namespace

Array nll(const Array& log_probs, const Array& labels, const Array& weight, int64_t ignore_index,
          Reduction reduction) {
  const Positions positions(log_probs, labels, weight, ignore_index);
  std::vector<Real> losses;
  for (int64_t i = 0; i < labels.numel(); ++i) {
    losses.push_back(positions.is_ignored(i)
                         ? Real(0)
                         : -positions.weight_of(i) * log_probs[positions.chosen(i)]);
  }
  return reduced(labels.shape, losses, positions.count(), reduction);
}

Array nll_backward(const Array& log_probs, const Array& labels, const Array& weight,
                   int64_t ignore_index, Reduction reduction, const Array& dy) {
  const Positions positions(log_probs, labels, weight, ignore_index);
  const Real count = positions.count();
  Array dx = zeros(log_probs.shape);
  for (int64_t i = 0; i < labels.numel(); ++i) {
    if (positions.is_ignored(i)) continue;
    dx[positions.chosen(i)] =
        static_cast<double>(upstream(dy, i, count, reduction) * -positions.weight_of(i));
  }
  return dx;
}

Array mse(const Array& x, const Array& t, Reduction reduction) {
  return pointwise(x, t, reduction,
                   [&](int64_t i) { return difference(x, t, i) * difference(x, t, i); });
}

Array mse_backward(const Array& x, const Array& t, Reduction reduction, const Array& dy) {
  return pointwise_backward(x, t, reduction, dy,
                            [&](int64_t i) { return 2 * difference(x, t, i); });
}

Array l1(const Array& x, const Array& t, Reduction reduction) {
  return pointwise(x, t, reduction, [&](int64_t i) { return std::abs(difference(x, t, i)); });
}

Array l1_backward(const Array& x, const Array& t, Reduction reduction, const Array& dy) {
  return pointwise_backward(x, t, reduction, dy,
                            [&](int64_t i) { return sign(difference(x, t, i)); });
}

Array smooth_l1(const Array& x, const Array& t, double beta, Reduction reduction) {
  require(beta >= 0, "smooth_l1: beta must not be negative");
  return pointwise(x, t, reduction, [&](int64_t i) {
    const Real d = std::abs(difference(x, t, i));
    return d < beta ? d * d / 2 / beta : d - Real(beta) / 2;
  });
}

Array smooth_l1_backward(const Array& x, const Array& t, double beta, Reduction reduction,
                         const Array& dy) {
  require(beta >= 0, "smooth_l1: beta must not be negative");
  return pointwise_backward(x, t, reduction, dy, [&](int64_t i) {
    const Real d = difference(x, t, i);
    return std::abs(d) < beta ? d / beta : sign(d);
  });
}

Array bce_with_logits(const Array& x, const Array& t, const Array& weight, const Array& pos_weight,
                      Reduction reduction) {
  const Weights weights{x, weight, pos_weight};
  return pointwise(x, t, reduction, [&](int64_t i) {
    // 1 - sigmoid(x) = sigmoid(-x)
    const Real positive = weights.at(pos_weight, i) * t[i] * minus_log_sigmoid(x[i]);
    const Real negative = (1 - Real(t[i])) * minus_log_sigmoid(-x[i]);
    return weights.at(weight, i) * (positive + negative);
  });
}

Array bce_with_logits_backward(const Array& x, const Array& t, const Array& weight,
                               const Array& pos_weight, Reduction reduction, const Array& dy) {
  const Weights weights{x, weight, pos_weight};
  return pointwise_backward(x, t, reduction, dy, [&](int64_t i) {
    // d -log sigmoid(x) = -sigmoid(-x)
    const Real positive = weights.at(pos_weight, i) * t[i] * -sigmoid(-x[i]);
    const Real negative = (1 - Real(t[i])) * sigmoid(x[i]);
    return weights.at(weight, i) * (positive + negative);
  });
}

}  // namespace gradus::ref
