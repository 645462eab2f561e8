#include "core/ops/softmax.h"

namespace gradus {

SoftmaxGeometry softmax_geometry(const AnyView& x, int axis) {
  const int64_t c = x.shape[axis], sets = x.numel() / c;
  // In a dense tensor the stride of an axis is the number of elements of all faster axes; that of
  // an axis of extent 1 may be anything, and does not matter.
  const int64_t inner = c == 1 ? 1 : x.strides[axis];
  return {.outer = sets / inner, .c = c, .inner = inner};
}

}  // namespace gradus
