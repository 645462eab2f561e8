// Reading labels and class weights, and adding up rows, for losses of one label per row.
#pragma once

#include "core/ops/cross_entropy.h"
#include "cpu/dispatch.h"

namespace gradus::GRADUS_ISA {

inline int64_t label_at(const AnyView& labels, int64_t i) {
  switch (labels.dtype) {
    case DType::u8:
      return static_cast<const uint8_t*>(labels.data)[i];
    case DType::i32:
      return static_cast<const int32_t*>(labels.data)[i];
    default:
      return static_cast<const int64_t*>(labels.data)[i];
  }
}

template <class A>
A weight_at(const AnyView& weight, int64_t k) {
  return weight ? static_cast<const A*>(weight.data)[k] : A(1);
}

// Of the first class of a row of x.
inline int64_t row_offset(const ClassRows& shape, int64_t row) {
  return row / shape.inner * shape.c * shape.inner + row % shape.inner;
}

// Sums over rows: of the losses, and of the weights of those that count.
struct RowTotal {
  double loss = 0;
  double weight = 0;
};

// The loss of all rows, and the mean's divisor, from the totals of tiles in order; nothing for
// Reduction::none, whose rows have been written.
template <class A, class Forward>
void write_loss(const Forward& args, const RowTotal* totals, int64_t tiles) {
  if (args.reduction == Reduction::none) return;
  RowTotal total;
  for (int64_t i = 0; i < tiles; ++i) {
    total.loss += totals[i].loss;
    total.weight += totals[i].weight;
  }
  if (args.reduction == Reduction::mean) {
    *args.divisor.template as<A>() = static_cast<A>(total.weight);
    total.loss /= total.weight;
  }
  *args.loss.template as<A>() = static_cast<A>(total.loss);
}

}  // namespace gradus::GRADUS_ISA
