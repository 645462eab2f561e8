// How element-wise kernels are shared out among threads; pure host code.
#pragma once

#include <optional>

#include "core/view.h"
#include "cuda/device/strided_plan.h"
#include "cuda/plan.h"

namespace gradus {

// A map of one operand: threads and packs of 16 bytes of a block, two packs of each thread in
// flight. (A map of two operands has kElementThreads, and a pack of each operand.)
inline constexpr int kMapThreads = 128, kMapPacks = 2, kMapBlock = kMapThreads * kMapPacks;

// y, a and b of a map of two operands, which broadcast to the shape of y.
inline StridedPlan<3> plan_map_pair(const AnyView& y, const AnyView& a, const AnyView& b) {
  return {y.shape,
          {y.strides, broadcast_strides(a.shape, a.strides, y.shape),
           broadcast_strides(b.shape, b.strides, y.shape)}};
}

// Whether the t-th tensor lies without gaps in the order of the walk.
template <int N>
bool walks_flat(const StridedPlan<N>& plan, int t) {
  int64_t next = 1;
  bool flat = true;
  for (int axis = plan.rank - 1; axis >= 0; --axis) {
    flat = flat && plan.strides[t][axis] == next;
    next *= plan.extents[axis];
  }
  return flat;
}

// An operand whose element for the i-th of the walk is number (i / repeat) % period: a scalar, a
// row, a column, a bias per channel of either memory format.
struct Broadcast {
  FastDivisor repeat, period;
};

// The broadcast that the t-th tensor is, if it is one; an empty walk has none.
template <int N>
std::optional<Broadcast> plan_broadcast(const StridedPlan<N>& plan, int t) {
  if (plan.count == 0) return {};
  int64_t repeat = 1, period = 1;
  int axis = plan.rank - 1;
  for (; axis >= 0 && plan.strides[t][axis] == 0; --axis) repeat *= plan.extents[axis];
  for (; axis >= 0 && plan.strides[t][axis] == period; --axis) period *= plan.extents[axis];
  for (; axis >= 0; --axis) {
    if (plan.strides[t][axis] != 0) return {};
  }
  if (period == 1) repeat = 1;  // a scalar, of any count
  if (std::max(repeat, period) > INT32_MAX) return {};
  return Broadcast{FastDivisor(static_cast<uint32_t>(repeat)),
                   FastDivisor(static_cast<uint32_t>(period))};
}

// How a pack of `width` neighbours of the walk reads a broadcast operand.
enum class Spread : uint8_t {
  one,   // one element for all
  run,   // a pack
  each,  // one by one
};
inline Spread plan_spread(const Broadcast& by, const void* operand, int64_t element) {
  const int64_t width = 16 / element, repeat = by.repeat.divisor, period = by.period.divisor;
  if (period == 1 || repeat % width == 0) return Spread::one;
  const bool runs = repeat == 1 && pack_width(element, {operand}, {period}) == width;
  return runs ? Spread::run : Spread::each;
}

}  // namespace gradus
