// How a copy between strided tensors of one element size is shared out among threads in packs; pure
// host code.
#pragma once

#include <array>
#include <optional>

#include "core/shape.h"
#include "cuda/device/pack_axes.h"
#include "cuda/device/strided_plan.h"
#include "cuda/plan.h"

namespace gradus {

// The walk in packs of 16 bytes, if y and x, of `element` bytes each, can be accessed so: both step
// through the innermost axis of y by 1, or x repeats one element along it.
inline std::optional<StridedPlan<2>> plan_packs(const StridedPlan<2>& plan, const void* y,
                                                const void* x, int64_t element) {
  const int64_t width = 16 / element;
  const int last = plan.rank - 1;
  if (plan.rank == 0 || plan.extents[last] % width != 0) return {};
  const bool repeats = plan.strides[1][last] == 0;
  if (plan.strides[0][last] != 1 || plan.strides[1][last] > 1 ||
      pack_width(element, {y, repeats ? y : x}, {}) != width) {
    return {};
  }
  Shape extents;
  std::array<Strides, 2> strides;
  for (int axis = 0; axis < last; ++axis) {
    const int64_t in_y = plan.strides[0][axis], in_x = plan.strides[1][axis];
    if (in_y % width != 0 || (!repeats && in_x % width != 0)) return {};
    extents.append(plan.extents[axis]);
    strides[0].append(in_y);
    strides[1].append(in_x);
  }
  extents.append(plan.extents[last] / width);
  strides[0].append(width);
  strides[1].append(repeats ? 0 : width);
  return StridedPlan<2>(extents, strides);
}

// Whether y lies without gaps, from a boundary of 16 bytes on, in the order of the walk, and x can
// be read along the innermost axis, of a pack at least: packs of y may then begin and end anywhere
// in rows of x.
inline bool fills_packs(const StridedPlan<2>& plan, const void* y, int64_t element) {
  const int64_t width = 16 / element;
  const int last = plan.rank - 1;
  if (plan.rank < 2 || plan.extents[last] < width || plan.strides[1][last] > 1) return false;
  int64_t gapless = 1;
  for (int axis = last; axis >= 0; gapless *= plan.extents[axis--]) {
    if (plan.strides[0][axis] != gapless) return false;
  }
  return PackAxes<2>::take(plan) && pack_width(element, {y}, {}) == width;
}

// How many places along an axis along which x repeats itself a thread stores its pack to.
inline constexpr int kCopyRows = 4;

// The fewest packs along the innermost axis for which it does so: 128 bytes. Stores of shorter runs
// would be scattered, with the other places between them.
inline constexpr int64_t kCopyRun = 8;

// A walk of which each pack is stored kCopyRows times, `row` elements apart.
struct RepeatedRows {
  StridedPlan<2> packs;
  int64_t row;
};

// `packs` walked so along the innermost axis along which x repeats itself a multiple of kCopyRows
// times, if there is one: as the gradient of a mean over channels does. The innermost axis of packs
// is never taken: stores of neighbouring threads would lie 64 bytes apart.
inline std::optional<RepeatedRows> plan_repeated_rows(const StridedPlan<2>& packs) {
  const int last = packs.rank - 1;
  if (last < 1 || packs.extents[last] < kCopyRun) return {};
  int repeated = last - 1;
  while (repeated >= 0 &&
         (packs.strides[1][repeated] != 0 || packs.extents[repeated] % kCopyRows != 0)) {
    --repeated;
  }
  if (repeated < 0) return {};
  Shape extents;
  std::array<Strides, 2> strides;
  for (int axis = 0; axis < packs.rank; ++axis) {
    const int64_t rows = axis == repeated ? kCopyRows : 1;
    extents.append(packs.extents[axis] / rows);
    strides[0].append(packs.strides[0][axis] * rows);
    strides[1].append(packs.strides[1][axis]);
  }
  return RepeatedRows{StridedPlan<2>(extents, strides), packs.strides[0][repeated]};
}

}  // namespace gradus
