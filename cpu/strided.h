// Walking several strided tensors of one shape together: neighbouring axes that all of them step
// through evenly are merged, the innermost becomes a row, and rows are cut into tiles.
#pragma once

#include <array>

#include "cpu/parallel.h"

namespace gradus::GRADUS_ISA {

template <int N>
using RowOffsets = std::array<int64_t, N>;  // of a row's first element, in elements, per tensor

template <int N>
struct Rows {
  Shape outer;                                // extents of the axes outside the row
  std::array<Strides, N> outer_strides;       // per tensor
  int64_t inner = 1;                          // elements of a row
  std::array<int64_t, N> inner_strides = {};  // per tensor
  int64_t count = 1;                          // rows

  Rows(const Shape& shape, const std::array<Strides, N>& strides) {
    // The axis with the smallest stride of the first tensor goes innermost, so that a channels-last
    // tensor is walked as it is stored.
    std::array<int, kMaxRank> order{};
    int rank = 0;
    for (int axis = 0; axis < shape.rank(); ++axis) {
      if (shape[axis] == 1) continue;
      int at = rank++;
      for (; at > 0 && strides[0][order[at - 1]] < strides[0][axis]; --at)
        order[at] = order[at - 1];
      order[at] = axis;
    }
    Shape extents;
    std::array<Strides, N> steps;
    for (int i = 0; i < rank; ++i) {
      const int axis = order[i];
      const int last = extents.rank() - 1;
      bool merges = last >= 0;
      for (int t = 0; t < N && merges; ++t) {
        merges = steps[t][last] == strides[t][axis] * shape[axis];
      }
      for (int t = 0; t < N; ++t) {
        if (merges)
          steps[t][last] = strides[t][axis];
        else
          steps[t].append(strides[t][axis]);
      }
      if (merges)
        extents[last] *= shape[axis];
      else
        extents.append(shape[axis]);
    }
    const int outer_rank = extents.rank() == 0 ? 0 : extents.rank() - 1;
    for (int i = 0; i < outer_rank; ++i) {
      outer.append(extents[i]);
      for (int t = 0; t < N; ++t) outer_strides[t].append(steps[t][i]);
    }
    if (extents.rank() > 0) {
      inner = extents[outer_rank];
      for (int t = 0; t < N; ++t) inner_strides[t] = steps[t][outer_rank];
    }
    count = shape.numel() == 0 ? 0 : outer.numel();
  }

  RowOffsets<N> offsets(int64_t row) const {
    RowOffsets<N> at{};
    for (int axis = outer.rank() - 1; axis >= 0; --axis) {
      const int64_t index = row % outer[axis];
      row /= outer[axis];
      for (int t = 0; t < N; ++t) at[t] += index * outer_strides[t][axis];
    }
    return at;
  }
};

// Calls f(offsets, elements) for every row, or for pieces of long rows, in parallel.
template <int N, class F>
void for_each_row(Cpu& cpu, const Rows<N>& rows, F&& f) {
  if (rows.count == 0) return;
  const int64_t pieces = (rows.inner + kTile - 1) / kTile;
  const int64_t rows_per_tile = std::max<int64_t>(1, kTile / rows.inner);
  parallel_tiles(cpu, rows.count * pieces, pieces > 1 ? 1 : rows_per_tile,
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) {
                     RowOffsets<N> at = rows.offsets(i / pieces);
                     const int64_t first = (i % pieces) * kTile;
                     for (int t = 0; t < N; ++t) at[t] += first * rows.inner_strides[t];
                     f(at, std::min(kTile, rows.inner - first));
                   }
                 });
}

}  // namespace gradus::GRADUS_ISA
