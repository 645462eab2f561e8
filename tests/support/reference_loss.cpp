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

  Real log_p(int64_t row, int64_t k) const {
    Real largest = logits[row * c];
    for (int64_t j = 1; j < c; ++j) largest = std::max<Real>(largest, logits[row * c + j]);
    Real total = 0;
    for (int64_t j = 0; j < c; ++j) total += std::exp(logits[row * c + j] - largest);
    return logits[row * c + k] - largest - std::log(total);
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
    for (int64_t k = 0; k < rows.c; ++k) {
      const Real target = rows.target(row, k);
      if (target != 0) y[scalar ? 0 : row] += -target * rows.log_p(row, k);
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
  for (int64_t row = 0; row < rows.n; ++row) {
    const Real d = Real(dy[scalar ? 0 : row]) / rows.divisor();
    for (int64_t k = 0; k < rows.c; ++k) {
      // d -log p[j] / d logit[k] = p[k] - (1 if j = k), summed over j with the targets
      const Real p = std::exp(rows.log_p(row, k));
      Real slope = 0;
      for (int64_t j = 0; j < rows.c; ++j) slope += rows.target(row, j) * (p - (j == k ? 1 : 0));
      if (!rows.ignored(row)) dx[row * rows.c + k] = static_cast<double>(d * slope);
    }
  }
  return dx;
}

}  // namespace gradus::ref
