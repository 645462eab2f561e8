// Adds one batch's loss and number of right answers to totals on the device.
#pragma once

#include "core/backend.h"

namespace gradus {

//   totals[0] += loss·b     totals[1] += right answers     totals[2] += b
// An answer is right when logits[i, label] is greater than every logit before it and no less than
// every one after it: the first of equals is the answer, and NaN is never right.
//
// failed_step, -1 so far, becomes `step` when the loss is not finite.
struct TrackMetrics {
  static constexpr std::string_view name = "track_metrics";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView loss;         // [1] or [], acc_dtype of logits or their dtype: the mean over the batch
  AnyView logits;       // [b, classes], contiguous
  AnyView labels;       // [b], i64, contiguous
  AnyView totals;       // [3], f64
  AnyView step;         // [1], i64: the number of this step, from 0; may be not given
  AnyView failed_step;  // [1], i64; may be not given

  DType dtype() const { return logits.dtype; }
  auto views() const { return list_views(loss, logits, labels, totals, step, failed_step); }
  int64_t bytes() const { return logits.nbytes() + labels.nbytes(); }
  int64_t flops() const { return logits.numel(); }
  static Guarantee guarantee() { return {.accumulator = "f64"}; }
};

void run(Cpu&, const TrackMetrics&);
void run(Cuda&, const TrackMetrics&);

// Whether a row of logits answers `label`, as far as its classes first, first + step, ... tell.
template <class T>
GRADUS_HD bool is_right(const T* row, int64_t classes, int64_t label, int64_t first = 0,
                        int64_t step = 1) {
  if (label < 0 || label >= classes) return false;
  using A = acc_t<std::remove_const_t<T>>;
  const A own = static_cast<A>(row[label]);
  bool right = true;
  for (int64_t c = first; c < classes; c += step) {
    const A other = static_cast<A>(row[c]);
    right = right && (c < label ? own > other : own >= other);
  }
  return right;
}

}  // namespace gradus
