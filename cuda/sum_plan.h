// How a sum over any axes is shared out among threads; pure host code. What decides the
// order of addition depends on the shape, strides, dtype and alignment of x only, never on the
// card.
#pragma once

#include <bit>

#include "core/view.h"
#include "cuda/device/strided_plan.h"
#include "cuda/plan.h"

namespace gradus {

inline constexpr int kSumThreads = 256;

enum class SumMapping : uint8_t {
  warp_per_output,   // short sums along x
  block_per_output,  // long sums along x, in chunks where there are few outputs
  columns,           // sums across x: each thread adds whole packs of neighbouring outputs
};

// The merged axes of x fall into `kept` ones and `reduced` ones, and for `columns` one kept axis
// apart, along which neighbouring threads work. Output o lies at index o / columns of `kept` and at
// o % columns along the column axis.
struct SumPlan {
  SumMapping mapping = SumMapping::warp_per_output;
  bool packed = false;     // x is read 16 bytes at a time; `reduced` or the columns count packs
  StridedPlan<2> kept;     // offsets in x and in y
  StridedPlan<1> reduced;  // offsets in x
  int64_t outputs = 1;     // elements of y
  int64_t columns = 1;     // extent of the column axis, in elements
  int64_t column_x = 0;    // its strides
  int64_t column_y = 0;
  int64_t chunks = 1;      // a sum is cut into so many parts,
  int64_t chunk_size = 0;  // of so many items of `reduced` each (the last may be shorter)
  int block_x = 0;         // columns: threads side by side; the other threads share the rows
  int64_t tiles = 1;       // columns: blocks side by side
};

namespace detail {

inline constexpr int64_t kSumWantedBlocks = 1024;  // enough to fill any card of today several times
inline constexpr int64_t kShortSum = 32;  // items below which threads work on outputs of their own
inline constexpr int64_t kSumWarpItems = 256;       // items up to which a warp is enough for a sum
inline constexpr int64_t kSumLeastChunk = 1024;     // items that are worth a block
inline constexpr int64_t kSumLeastRowsPerLane = 8;  // columns: rows that are worth a thread

// The merged axes of x, sorted into their roles.
struct SumAxes {
  Shape kept, reduced;
  Strides kept_x, kept_y, reduced_x;
  int64_t columns = 1, column_x = 0, column_y = 0;
  bool by_columns = false;
};

inline SumAxes sort_axes(const AnyView& x, const AnyView& y) {
  const StridedPlan<2> merged(x.shape, {x.strides, broadcast_strides(y.shape, y.strides, x.shape)});
  const auto is_kept = [&](int axis) { return merged.strides[1][axis] != 0; };
  int column_axis = merged.rank - 1;
  const bool is_short = x.numel() / y.numel() < kShortSum;
  while (is_short && column_axis >= 0 && !is_kept(column_axis)) --column_axis;
  SumAxes axes;
  axes.by_columns = column_axis >= 0 && is_kept(column_axis);
  for (int axis = 0; axis < merged.rank; ++axis) {
    const int64_t extent = merged.extents[axis];
    const int64_t in_x = merged.strides[0][axis], in_y = merged.strides[1][axis];
    if (axes.by_columns && axis == column_axis) {
      axes.columns = extent, axes.column_x = in_x, axes.column_y = in_y;
    } else if (is_kept(axis)) {
      axes.kept.append(extent), axes.kept_x.append(in_x), axes.kept_y.append(in_y);
    } else {
      axes.reduced.append(extent), axes.reduced_x.append(in_x);
    }
  }
  return axes;
}

// Whether x can be read in packs of `width` along the columns or along the innermost reduced axis;
// if so along the latter, that axis counts packs from here on.
inline bool take_packs(SumAxes& axes, const AnyView& x, int64_t width) {
  bool fits = pack_width(size_of(x.dtype), {x.data}, {}) == width;
  for (const int64_t stride : axes.kept_x) fits = fits && stride % width == 0;
  const int last = axes.reduced.rank() - 1;
  for (int axis = 0; axis <= last; ++axis) {
    if (axes.by_columns || axis < last) fits = fits && axes.reduced_x[axis] % width == 0;
  }
  if (axes.by_columns) return fits && axes.column_x == 1 && axes.columns % width == 0;
  fits = fits && last >= 0 && axes.reduced_x[last] == 1 && axes.reduced[last] % width == 0;
  if (fits) {
    axes.reduced[last] /= width;
    axes.reduced_x[last] = width;
  }
  return fits;
}

}  // namespace detail

// x and y as in core/ops/sum.h; x is not empty.
inline SumPlan plan_sum(const AnyView& x, const AnyView& y) {
  detail::SumAxes axes = detail::sort_axes(x, y);
  SumPlan plan;
  const int64_t width = 16 / size_of(x.dtype);
  plan.packed = detail::take_packs(axes, x, width);
  plan.kept = StridedPlan<2>(axes.kept, {axes.kept_x, axes.kept_y});
  plan.reduced = StridedPlan<1>(axes.reduced, {axes.reduced_x});
  plan.outputs = y.numel();
  plan.columns = axes.columns;
  plan.column_x = axes.column_x;
  plan.column_y = axes.column_y;
  const int64_t items = plan.reduced.count;
  int64_t blocks = plan.outputs, least = detail::kSumLeastChunk;
  if (axes.by_columns) {
    plan.mapping = SumMapping::columns;
    const int64_t packs = axes.columns / (plan.packed ? width : 1);
    const int64_t side = items < detail::kShortSum ? kSumThreads : 32;
    plan.block_x = static_cast<int>(
        std::min<int64_t>(side, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(packs)))));
    plan.tiles = ceil_div(packs, plan.block_x);
    blocks = plan.kept.count * plan.tiles;
    least = kSumThreads / plan.block_x * detail::kSumLeastRowsPerLane;
  } else if (items > detail::kSumWarpItems) {
    plan.mapping = SumMapping::block_per_output;
  }
  const bool in_chunks =
      plan.mapping != SumMapping::warp_per_output && blocks < detail::kSumWantedBlocks / 2;
  const Chunks chunks = plan_chunks(items, in_chunks ? least : items,
                                    in_chunks ? detail::kSumWantedBlocks / blocks : 1);
  plan.chunks = chunks.count;
  plan.chunk_size = chunks.size;
  return plan;
}

}  // namespace gradus
