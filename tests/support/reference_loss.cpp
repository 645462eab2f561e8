#include "tests/support/reference_loss.h"

#include <algorithm>
#include <cmath>

namespace gradus::ref {
namespace {

struct Rows {
  const Array& logits;
  const Array& labels;
  const CrossEntropyOptions& options;
  int64_t n, c;

  Rows(const Array& x, const Array& l, const CrossEntropyOptions& o)
      : logits(x), labels(l), options(o), n(x.shape[0]), c(x.shape[1]) {
    require(x.shape.rank() == 2 && l.numel() == n, "cross_entropy: logits [n, c], labels [n]");
    for (int64_t row = 0; row < n; ++row) {
      require(ignored(row) || (label(row) >= 0 && label(row) < c),
              "cross_entropy: label outside the classes");
    }
  }

  int64_t label(int64_t row) const { return static_cast<int64_t>(labels[row]); }
  bool ignored(int64_t row) const { return label(row) == options.ignore_index; }
  Real weight(int64_t k) const { return options.weight.empty() ? 1 : options.weight[k]; }

  // What the row's loss weighs -log p[k] with.
  Real target(int64_t row, int64_t k) const {
    if (ignored(row)) return 0;
    const Real smoothed = options.label_smoothing / Real(c) * weight(k);
    return k == label(row) ? (1 - Real(options.label_smoothing)) * weight(k) + smoothed : smoothed;
  }

  // log p[k] of all k.
  std::vector<Real> log_p(int64_t row) const {
    Real largest = logits[row * c];
    for (int64_t j = 1; j < c; ++j) largest = std::max<Real>(largest, logits[row * c + j]);
    Real total = 0;
    for (int64_t j = 0; j < c; ++j) total += std::exp(logits[row * c + j] - largest);
    std::vector<Real> result;
    for (int64_t k = 0; k < c; ++k) {
      result.push_back(logits[row * c + k] - largest - std::log(total));
    }
    return result;
  }

  Real divisor() const {
    if (options.reduction != Reduction::mean) return 1;
    Real total = 0;
    for (int64_t row = 0; row < n; ++row) total += ignored(row) ? 0 : weight(label(row));
    return total;
  }
};

}  // namespace

Array cross_entropy(const Array& logits, const Array& labels, const CrossEntropyOptions& options) {
  const Rows rows(logits, labels, options);
  const bool scalar = options.reduction != Reduction::none;
  Sums y(scalar ? Shape{} : Shape{rows.n});
  for (int64_t row = 0; row < rows.n; ++row) {
    const std::vector<Real> log_p = rows.log_p(row);
    for (int64_t k = 0; k < rows.c; ++k) {
      const Real target = rows.target(row, k);
      if (target != 0) y[scalar ? 0 : row] += -target * log_p[static_cast<size_t>(k)];
    }
  }
  if (scalar) y[0] /= rows.divisor();
  return y.rounded();
}

Array cross_entropy_backward(const Array& logits, const Array& labels, const Array& dy,
                             const CrossEntropyOptions& options) {
  const Rows rows(logits, labels, options);
  const bool scalar = options.reduction != Reduction::none;
  Array dx = zeros(logits.shape);
  const Real divisor = rows.divisor();
  for (int64_t row = 0; row < rows.n; ++row) {
    if (rows.ignored(row)) continue;
    const Real d = Real(dy[scalar ? 0 : row]) / divisor;
    const std::vector<Real> log_p = rows.log_p(row);
    // d -log p[j] / d logit[k] = p[k] - (1 if j = k), summed over j with the targets
    Real targets = 0;
    for (int64_t j = 0; j < rows.c; ++j) targets += rows.target(row, j);
    for (int64_t k = 0; k < rows.c; ++k) {
      const Real slope = targets * std::exp(log_p[static_cast<size_t>(k)]) - rows.target(row, k);
      dx[row * rows.c + k] = static_cast<double>(d * slope);
    }
  }
  return dx;
}

}  // namespace gradus::ref
