#include "core/ops/cross_entropy.h"

namespace gradus {

ClassRows class_rows(const AnyView& x, std::string_view op) {
  check(x.shape.rank() >= 2, op, "expected logits [n, c, ...], got ", x);
  const bool is_channels_last = format_of(x, op) == MemoryFormat::channels_last;
  ClassRows result{.rows = x.shape[0], .c = x.shape[1], .inner = 1};
  for (int axis = 2; axis < x.shape.rank(); ++axis) {
    result.rows *= x.shape[axis];
    if (!is_channels_last) result.inner *= x.shape[axis];
  }
  return result;
}

}  // namespace gradus
