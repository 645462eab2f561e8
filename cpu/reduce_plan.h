// How a reduction over any axes is shared out: units of outputs that are reduced together, each
// over the same blocks of x. All of it depends on the shape and the strides only.
#pragma once

#include "cpu/strided.h"

namespace gradus::GRADUS_ISA {

inline constexpr int64_t kRowBlock = 4096;  // elements of a row before parts are merged
inline constexpr int64_t kRows = 64;        // rows of a line of columns before parts are merged
inline constexpr int64_t kColumns = 256;    // columns that one unit reduces side by side
inline constexpr int64_t kShortRun = 32;    // elements below which outputs go side by side
inline constexpr int64_t kSlices = 64;      // parts that a reduction to few outputs is cut into

// Offset of the index-th element of `shape`, counted with the last axis fastest.
inline int64_t offset_of(int64_t index, const Shape& shape, const Strides& strides) {
  int64_t offset = 0;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    offset += index % shape[axis] * strides[axis];
    index /= shape[axis];
  }
  return offset;
}

struct ReducePlan {
  Shape kept;  // kept axes but the columns
  Strides kept_x, kept_y;
  bool by_columns = false;
  int64_t columns = 1, column_x = 0, column_y = 0;  // the kept axis that is innermost in x, if any
  Shape reduced;                                    // reduced axes but the innermost of them
  Strides reduced_x;
  int64_t run = 1, run_x = 0;  // the innermost reduced axis

  int64_t width, lines;     // columns of a unit, units along the columns
  int64_t block, segments;  // elements of a block along the run, blocks along it
  int64_t units, blocks, slices;

  ReducePlan(const AnyView& x, const AnyView& y);
  int64_t outputs() const { return kept.numel() * columns; }
};

inline ReducePlan::ReducePlan(const AnyView& x, const AnyView& y) {
  const Rows<2> rows(x.shape, {x.strides, broadcast_strides(y.shape, y.strides, x.shape)});
  Shape extents = rows.outer;
  std::array<Strides, 2> steps = rows.outer_strides;
  extents.append(rows.inner);
  for (size_t t = 0; t < 2; ++t) steps[t].append(rows.inner_strides[t]);
  int column_axis = extents.rank() - 1;
  const bool is_short = x.numel() / y.numel() < kShortRun;
  while (is_short && column_axis >= 0 && steps[1][column_axis] == 0) --column_axis;
  by_columns = column_axis >= 0 && steps[1][column_axis] != 0;
  bool has_run = false;
  for (int axis = extents.rank() - 1; axis >= 0; --axis) {
    if (by_columns && axis == column_axis) {
      columns = extents[axis], column_x = steps[0][axis], column_y = steps[1][axis];
    } else if (steps[1][axis] == 0 && !has_run) {
      run = extents[axis], run_x = steps[0][axis];
      has_run = true;
    } else if (steps[1][axis] == 0) {
      reduced.append(extents[axis]);
      reduced_x.append(steps[0][axis]);
    } else {
      kept.append(extents[axis]);
      kept_x.append(steps[0][axis]);
      kept_y.append(steps[1][axis]);
    }
  }
  width = std::min(columns, kColumns);
  lines = (columns + width - 1) / width;
  block = by_columns ? kRows : kRowBlock;
  segments = (run + block - 1) / block;
  units = kept.numel() * lines;
  blocks = reduced.numel() * segments;
  const int64_t tiles = units * blocks * std::min(run, block) * width / kTile;
  slices = std::clamp<int64_t>(std::min(tiles, kSlices / units), 1, blocks);
}

}  // namespace gradus::GRADUS_ISA
