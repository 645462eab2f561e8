// How the gradient of a reduction is shared out among threads that each take one pack of dx; pure
// host code.
#pragma once

#include <optional>

#include "core/view.h"
#include "cuda/device/pack_axes.h"
#include "cuda/plan.h"

namespace gradus {

// A gradient in packs in the order of dx: places in dx, x and y.
struct BackwardPacks {
  PackAxes<3> axes;
  bool neighbours = false;  // a pack has neighbouring outputs, else one
};

// The packs of a gradient whose sets lie along the innermost axis, or across it along two axes or
// more: along one, threads that share the outputs of a column are faster. Nothing if packs of 16
// bytes do not fit.
inline std::optional<BackwardPacks> plan_backward_packs(const AnyView& dx, const AnyView& x,
                                                        const AnyView& y) {
  const StridedPlan<3> plan(
      dx.shape, {dx.strides, x.strides, broadcast_strides(y.shape, y.strides, dx.shape)});
  const int64_t width = reduce_pack(size_of(dx.dtype));
  const int last = plan.rank - 1;
  if (width == 1 || last < 0 || plan.extents[last] % width != 0 || plan.strides[0][last] != 1 ||
      plan.strides[1][last] != 1 || plan.strides[2][last] > 1 ||
      pack_width(size_of(dx.dtype), {dx.data, x.data}, {}) != width) {
    return {};
  }
  const bool neighbours = plan.strides[2][last] == 1;
  int reduced = 0;
  Shape extents;
  std::array<Strides, 3> strides;
  for (int axis = 0; axis <= last; ++axis) {
    const int64_t unit = axis == last ? width : 1;
    extents.append(plan.extents[axis] / unit);
    reduced += plan.strides[2][axis] == 0;
    for (size_t t = 0; t < 3; ++t) {
      strides[t].append(plan.strides[t][axis] * unit);
      if ((t < 2 || neighbours) && strides[t][axis] % width != 0) return {};
    }
  }
  const StridedPlan<3> packs(extents, strides);
  if (!PackAxes<3>::take(packs) || (neighbours && reduced < 2)) return {};
  return BackwardPacks{PackAxes<3>(packs), neighbours};
}

}  // namespace gradus
