#include "core/ops/batch_norm.h"

namespace gradus {

BatchNormGeometry batch_norm_geometry(const AnyView& x) {
  BatchNormGeometry geometry{.n = x.shape[0], .c = x.shape[1], .s = 1};
  for (int axis = 2; axis < x.shape.rank(); ++axis) geometry.s *= x.shape[axis];
  // With one element per sample and channel, the channels are neighbours in either format.
  geometry.channels_last =
      geometry.s == 1 || format_of(x, "batch_norm") == MemoryFormat::channels_last;
  return geometry;
}

}  // namespace gradus
