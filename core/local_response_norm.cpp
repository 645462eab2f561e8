#include "core/ops/local_response_norm.h"

namespace gradus {

LocalResponseNormGeometry local_response_norm_geometry(const AnyView& x, int64_t size) {
  LocalResponseNormGeometry geometry{
      .n = x.shape[0], .c = x.shape[1], .s = 1, .before = size / 2, .after = size - size / 2 - 1};
  for (int axis = 2; axis < x.shape.rank(); ++axis) geometry.s *= x.shape[axis];
  // With one element per sample and channel, the channels are neighbours in either format.
  geometry.channels_last =
      geometry.s == 1 || format_of(x, "local_response_norm") == MemoryFormat::channels_last;
  return geometry;
}

ResponsePower response_power(double beta) {
  if (beta == 0.5) return ResponsePower::half;
  if (beta == 0.75) return ResponsePower::three_quarters;
  return beta == 1.0 ? ResponsePower::one : ResponsePower::other;
}

}  // namespace gradus
