// Naive cross-entropy of logits [n, c] with one label per row.
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

}  // namespace gradus::ref
