// How cross-entropy shares out its rows among threads; pure host code. All of it depends on the
// shape, the dtype and the alignment of the tensors.
#pragma once

#include "core/ops/cross_entropy.h"
#include "cuda/plan.h"

namespace gradus {

inline constexpr int kCrossEntropyThreads = 256;   // of a block backward, at most; of a long row
inline constexpr int kCrossEntropyShortLanes = 4;  // of a row that they hold at once

// Of a block of the forward pass; packs of longer rows want more registers.
constexpr int cross_entropy_most_threads(int lanes) { return lanes < 32 ? 1024 : 512; }

struct CrossEntropyPlan {
  int lanes = 1;    // threads of a row: 1, kCrossEntropyShortLanes, a warp, or kCrossEntropyThreads
  int width = 1;    // values of an access
  int threads = 0;  // of a block, whole warps
  Chunks chunks;    // of rows, one per block

  int64_t groups() const { return threads / lanes; }
};

namespace detail {

inline constexpr int64_t kCrossEntropyFewBlocks = 256;
inline constexpr int64_t kCrossEntropyWarpPacks = 1024;  // of a row; for more it gets a block

inline CrossEntropyPlan cross_entropy_lanes(const ClassRows& shape, int64_t element, bool packed) {
  CrossEntropyPlan plan;
  if (shape.inner > 1) {
    plan.lanes = 1;  // neighbouring rows lie together
  } else if (shape.c <= 4 * kCrossEntropyShortLanes) {
    plan.lanes = kCrossEntropyShortLanes;
  } else {
    plan.width = packed ? static_cast<int>(16 / element) : 1;
    plan.lanes =
        packed && shape.c / plan.width > kCrossEntropyWarpPacks ? kCrossEntropyThreads : 32;
  }
  // Few rows go to more blocks.
  plan.threads = kCrossEntropyThreads;
  while (plan.threads > std::max(64, plan.lanes) &&
         ceil_div(shape.rows, plan.groups()) < kCrossEntropyFewBlocks) {
    plan.threads /= 2;
  }
  return plan;
}

}  // namespace detail

// element: bytes of a logit. Rows may begin anywhere.
inline CrossEntropyPlan plan_cross_entropy_forward(const ClassRows& shape, int64_t element) {
  constexpr int64_t kOneBlockValues = 16384;  // a second kernel would take longer than they do
  CrossEntropyPlan plan = detail::cross_entropy_lanes(shape, element, true);
  int64_t least = plan.groups();
  const int64_t most = cross_entropy_most_threads(plan.lanes);
  if (shape.rows <= 2 * most / plan.lanes && shape.rows * shape.c <= kOneBlockValues) {
    least = shape.rows;
    if (plan.lanes <= 32) {
      const int64_t threads = ceil_div(shape.rows * plan.lanes, 32) * 32;
      plan.threads = static_cast<int>(std::clamp<int64_t>(threads, 32, most));
    }
  }
  plan.chunks = plan_chunks(shape.rows, least, 2048, plan.groups());
  return plan;
}

// alike: whether x and dx lie alike towards 16-byte boundaries.
inline CrossEntropyPlan plan_cross_entropy_backward(const ClassRows& shape, int64_t element,
                                                    bool alike) {
  CrossEntropyPlan plan = detail::cross_entropy_lanes(shape, element, alike);
  plan.chunks = {ceil_div(shape.rows, plan.groups()), plan.groups()};
  return plan;
}

}  // namespace gradus
