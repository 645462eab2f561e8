#include "core/ops/group_norm.h"

namespace gradus {

GroupNormGeometry group_norm_geometry(const AnyView& x, int64_t groups) {
  GroupNormGeometry geometry{.n = x.shape[0], .c = x.shape[1], .s = 1, .g = groups};
  for (int axis = 2; axis < x.shape.rank(); ++axis) geometry.s *= x.shape[axis];
  geometry.channels_last =
      geometry.s > 1 && geometry.c > 1 && format_of(x, "group_norm") == MemoryFormat::channels_last;
  return geometry;
}

}  // namespace gradus
