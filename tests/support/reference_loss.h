// Naive losses: cross-entropy of logits [n, c] with one label per row, NLL, MSE, L1, smooth L1,
// BCE.
#pragma once

#include "tests/support/reference_array.h"

namespace gradus::ref {

enum class Reduction : uint8_t { none, mean, sum };

struct CrossEntropyOptions {
  Reduction reduction = Reduction::mean;
  double label_smoothing = 0;
  int64_t ignore_index = -100;
  Array weight = {};  // [c], absent: all 1
};

// labels [n] hold integers. With e = label_smoothing and c classes, a row's loss is
//   (1 - e) * weight[label] * -log p[label] + e/c * sum over k of weight[k] * -log p[k]
// and 0 where the label is ignored. mean divides the sum by the sum of weight[label] over the rows
// that count, so it is NaN where none does. The result is [n] for none, else a scalar.
Array cross_entropy(const Array& logits, const Array& labels, const CrossEntropyOptions& options);

// d logits; dy is [n] for none, else a scalar.
Array cross_entropy_backward(const Array& logits, const Array& labels, const Array& dy,
                             const CrossEntropyOptions& options);

// -weight[label] * log_probs[label] per position; log_probs [n, c, ...], labels [n, ...], weight
// [c] or absent; an ignored label gives 0. mean divides by the sum of weight[label] that count.
Array nll(const Array& log_probs, const Array& labels, const Array& weight, int64_t ignore_index,
          Reduction reduction);
Array nll_backward(const Array& log_probs, const Array& labels, const Array& weight,
                   int64_t ignore_index, Reduction reduction, const Array& dy);

// x and t of one shape; the result has that shape for none, else it is a scalar. mean of no values
// is NaN. Gradients are d x; dy has the shape of the result.
Array mse(const Array& x, const Array& t, Reduction reduction);
Array mse_backward(const Array& x, const Array& t, Reduction reduction, const Array& dy);
// The gradient at x = t is 0.
Array l1(const Array& x, const Array& t, Reduction reduction);
Array l1_backward(const Array& x, const Array& t, Reduction reduction, const Array& dy);
// (x-t)^2 / (2 beta) where |x-t| < beta, else |x-t| - beta/2; beta = 0 is l1.
Array smooth_l1(const Array& x, const Array& t, double beta, Reduction reduction);
Array smooth_l1_backward(const Array& x, const Array& t, double beta, Reduction reduction,
                         const Array& dy);
// weight * -(pos_weight * t * log s(x) + (1 - t) * log(1 - s(x))), s the sigmoid; weight and
// pos_weight broadcast to x and may be absent. mean divides by the number of values.
Array bce_with_logits(const Array& x, const Array& t, const Array& weight, const Array& pos_weight,
                      Reduction reduction);
Array bce_with_logits_backward(const Array& x, const Array& t, const Array& weight,
                               const Array& pos_weight, Reduction reduction, const Array& dy);

}  // namespace gradus::ref
