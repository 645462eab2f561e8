// Reading labels and class weights, for losses of one label per row.
#pragma once

#include "core/view.h"
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

// Sums over rows: of the losses, and of the weights of those that count.
struct RowTotal {
  double loss = 0;
  double weight = 0;
};

}  // namespace gradus::GRADUS_ISA
