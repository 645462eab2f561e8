// Sets of one axis across x, whose packs are counted in 32 bits; pure host code.
#pragma once

#include "cuda/reduce_plan.h"

namespace gradus {

// Packs of neighbouring outputs, in the order of y, and where their columns lie in X tensors.
template <int X>
struct ColumnPacks {
  FastDivisor in_row;  // packs side by side
  uint32_t count = 0;  // all, over the kept axis, too
  int64_t kept[X];     // strides of the kept axis beside the columns,
  int64_t row[X];      // and of the reduced one, in elements

  // Whether they describe a plan: one kept axis beside the columns, y or what is like it dense.
  static bool take(const ReducePlan<X>& plan) {
    return plan.mapping == ReduceMapping::columns && plan.packed && plan.reduced.rank <= 1 &&
           plan.kept.rank <= 1 && plan.column[X] == 1 &&
           (plan.kept.count == 1 || plan.kept.strides[X][0] == plan.columns) &&
           plan.outputs <= INT32_MAX - kReduceThreads * 8 && plan.reduced.count <= INT32_MAX / 2;
  }
  explicit ColumnPacks(const ReducePlan<X>& plan)
      : in_row(static_cast<uint32_t>(plan.column_packs)),
        count(static_cast<uint32_t>(plan.kept.count * plan.column_packs)) {
    for (int t = 0; t < X; ++t) {
      kept[t] = plan.kept.strides[t][0];
      row[t] = plan.reduced.strides[t][0];
    }
  }
  // Where row i of a pack of N columns lies in tensor t.
  template <int N>
  GRADUS_HD int64_t place(int t, uint32_t pack, uint32_t i) const {
    const uint32_t outer = in_row.quotient(pack);
    return outer * kept[t] + int64_t{pack - outer * in_row.divisor} * N + i * row[t];
  }
};

// Whether reduce_forward_turn takes the plan, in packs of `width`: a thread has eight rows, and a
// warp merges those of a column.
inline bool takes_turns(const ReducePlan<1>& plan, int64_t width) {
  return plan.one_turn && ColumnPacks<1>::take(plan) && plan.chunks <= kMaxGridY &&
         plan.block_x * width * 32 >= kReduceThreads;
}

// Whether a block then has all of a set.
inline bool holds_sets(const ReducePlan<1>& plan, int64_t width) {
  return plan.chunks == 1 && takes_turns(plan, width);
}

}  // namespace gradus
