// How reductions of short rows are shared out among blocks; pure host code.
#pragma once

#include "cuda/reduce_plan.h"

namespace gradus {

// Short rows without gaps between them that packs do not divide.
struct ReduceShortRows {
  int64_t outputs = 0;  // rows in all; 0: not such rows, or too few of them
  int c = 0;            // elements of a row
  int lanes = 1;        // threads per row, a power of two
  int rows = 0;         // of a block
  int shared_bytes = 0;
};

// element: bytes.
inline ReduceShortRows plan_reduce_short_rows(const ReducePlan<1>& plan, int64_t element) {
  constexpr int64_t kRowBytes = 2048, kBlockBytes = 20480;  // at most, but for one row per thread
  constexpr int64_t kBlocks = 64, kManyBlocks = 1024;
  constexpr int64_t kLaneValues = 16;
  const StridedPlan<1>& row = plan.reduced;
  const int64_t c = row.count;
  const bool fits = plan.mapping == ReduceMapping::lanes_per_output && !plan.packed &&
                    c * element <= kRowBytes && row.rank == 1 && row.strides[0][0] == 1 &&
                    plan.kept.rank == 1 && plan.kept.strides[0][0] == c &&
                    plan.kept.strides[1][0] == 1;
  if (!fits) return {};
  ReduceShortRows rows{.c = static_cast<int>(c)};
  while (rows.lanes < 32 && rows.lanes * kLaneValues < c) rows.lanes *= 2;
  const int64_t at_once = kReduceThreads / rows.lanes;
  const int64_t most = std::min(kBlockBytes / (c * element), plan.outputs / kManyBlocks);
  rows.rows = static_cast<int>(std::max<int64_t>(1, most / at_once) * at_once);
  rows.shared_bytes = static_cast<int>(ceil_div(rows.rows * c * element, 16) * 16 + 16);
  if (plan.outputs >= kBlocks * rows.rows) rows.outputs = plan.outputs;
  return rows;
}

}  // namespace gradus
