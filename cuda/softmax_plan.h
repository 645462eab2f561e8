// How softmax is shared out among threads; pure host code. Everything, and with it the order of the
// sums, depends on the shape, the dtype and the alignment of the tensors, and on whether the card
// has clusters and how much shared memory its blocks may have.
//
// The c values of a set are items along it: packs of `width` neighbours of a row (inner = 1), or
// single values of `width` sets side by side (inner > 1: a column). A block holds `side` rows or
// columns, `lanes` threads along each, and every thread up to `per_thread` items in registers. Sets
// that are too long for a block are cut into chunks.
#pragma once

#include <bit>

#include "core/ops/softmax.h"
#include "cuda/plan.h"

namespace gradus {

inline constexpr int kSoftmaxRowPacks = 4;

struct SoftmaxPlan {
  bool columns = false;     // inner > 1
  int width = 1;            // values of an access
  int per_thread = 1;       // 1, 2, 4 or 8; for columns 4 or 8, for chunks 4
  int lanes = 1;            // threads along a set; for rows a power of two
  int side = 1;             // rows or columns of a block; for columns a power of two
  int threads = 0;          // lanes · side, filled up to whole warps
  int64_t units = 0;        // rows or columns in all
  int64_t items = 0;        // of a set
  bool in_cluster = false;  // the blocks of the chunks of a set form a cluster
  int64_t chunks = 1;       // of a set
  int64_t chunk_items = 0;
  int64_t blocks = 0;

  int64_t sets() const { return units * (columns ? width : 1); }
  // Whole rows of 16-byte packs, kSoftmaxRowPacks of them per thread, which are at least a warp's.
  bool has_rows_in_registers() const {
    return !columns && width > 1 && chunks == 1 && per_thread == kSoftmaxRowPacks && lanes >= 32 &&
           lanes <= 512;
  }
};

inline constexpr int64_t kSoftmaxThreads = 256;  // of a block, where that is enough

// Of a block whose rows are `lanes` threads each in registers: one row, or four of a warp each.
constexpr int softmax_row_threads(int lanes) { return lanes > 32 ? lanes : 128; }

namespace detail {

inline int64_t floor_power(int64_t value) {
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(value)));
}

inline constexpr int64_t kSoftmaxMostThreads = 1024;
inline constexpr int64_t kSoftmaxFewBlocks = 128;
inline constexpr int64_t kSoftmaxMostCluster = 8;
inline constexpr int64_t kSoftmaxClusterItems = 2048;  // of a block; more take several blocks

// Rows: few lanes with several items each, whole 128-byte lines per access where a row has them.
inline void plan_softmax_rows(SoftmaxPlan& plan, bool has_clusters) {
  int64_t per_thread = 1;
  while (per_thread < 4 && per_thread * 8 < plan.items) per_thread *= 2;
  int64_t lanes = ceil_power_of_two(ceil_div(plan.items, per_thread));
  if (plan.width == 1 && (lanes == 64 || lanes > kSoftmaxMostThreads)) {
    per_thread = 8;  // one warp instead of two, or one block instead of chunks
    lanes = ceil_power_of_two(ceil_div(plan.items, per_thread));
  }
  if (has_clusters && plan.items > kSoftmaxClusterItems &&
      plan.items <= kSoftmaxMostCluster * kSoftmaxMostThreads * 4) {
    plan.in_cluster = true;
    per_thread = 4;
    plan.chunks = std::min(kSoftmaxMostCluster, ceil_div(plan.items, kSoftmaxClusterItems));
    lanes = ceil_power_of_two(ceil_div(ceil_div(plan.items, plan.chunks), per_thread));
  } else if (lanes > kSoftmaxMostThreads) {
    per_thread = 4;
    lanes = kSoftmaxThreads;
  }
  plan.per_thread = static_cast<int>(per_thread);
  plan.lanes = static_cast<int>(lanes);
  // Rows beyond a warp have a block of their own.
  plan.side = static_cast<int>(lanes > 32 ? 1 : kSoftmaxThreads / lanes);
}

// Columns: as many side by side as make a line of 128 bytes, the lanes along the set.
inline void plan_softmax_columns(SoftmaxPlan& plan, int64_t element, int most_items) {
  const int64_t line = std::min<int64_t>(32, std::max<int64_t>(1, 128 / (plan.width * element)));
  // As many loads at a time as registers allow.
  int64_t per_thread = plan.items > 4 ? most_items : 4;
  int64_t lanes = ceil_div(plan.items, per_thread);
  if (lanes > kSoftmaxMostThreads / 2) {  // in chunks
    per_thread = 4;
    lanes = kSoftmaxThreads / line;
  }
  // 16-bit values take more time to compute: smaller blocks do it at different times.
  const int64_t threads = element == 2 ? kSoftmaxThreads / 2 : kSoftmaxThreads;
  int64_t side = std::max(line, floor_power(std::max<int64_t>(1, threads / lanes)));
  side = std::min(
      {side, threads, floor_power(kSoftmaxMostThreads / lanes), ceil_power_of_two(plan.units)});
  // Few whole columns go to more blocks, as far as 32 bytes side by side allow.
  while (lanes * per_thread >= plan.items && side * plan.width * element > 32 &&
         ceil_div(plan.units, side) < kSoftmaxFewBlocks) {
    side /= 2;
  }
  plan.per_thread = static_cast<int>(per_thread);
  plan.side = static_cast<int>(side);
  plan.lanes = static_cast<int>(lanes);
}

}  // namespace detail

// element: bytes of a value; most_items: 4, or 8, that a thread can take of a column; pointers: of
// all tensors that are read or written.
inline SoftmaxPlan plan_softmax(const SoftmaxGeometry& g, int64_t element, int most_items,
                                bool has_clusters, std::initializer_list<const void*> pointers) {
  SoftmaxPlan plan;
  plan.columns = g.inner > 1;
  const int64_t full = 16 / element;
  const bool is_full = pack_width(element, pointers, {plan.columns ? g.inner : g.c}) == full;
  plan.width = is_full ? static_cast<int>(full) : 1;
  plan.items = plan.columns ? g.c : g.c / plan.width;
  plan.units = plan.columns ? g.outer * (g.inner / plan.width) : g.outer;
  if (plan.columns) {
    detail::plan_softmax_columns(plan, element, is_full ? most_items : 8);
  } else {
    detail::plan_softmax_rows(plan, has_clusters);
  }
  plan.threads = static_cast<int>(ceil_div(int64_t{plan.lanes} * plan.side, 32) * 32);
  if (plan.in_cluster) {
    plan.chunk_items = ceil_div(plan.items, plan.chunks);
  } else {
    plan.chunk_items = std::min<int64_t>(plan.items, int64_t{plan.lanes} * plan.per_thread);
    plan.chunks = ceil_div(plan.items, plan.chunk_items);
  }
  plan.blocks = ceil_div(plan.units, plan.side) * plan.chunks;
  return plan;
}

// 16-bit sets side by side that small blocks hold in shared memory: 8 packs of a row, 128 bytes, by
// as many lanes as take kSoftmaxStagedItems each. blocks = 0 where that does not suit.
inline constexpr int kSoftmaxStagedItems = 8;

inline SoftmaxPlan plan_softmax_staged_columns(const SoftmaxGeometry& g,
                                               std::initializer_list<const void*> pointers) {
  SoftmaxPlan plan;
  if (g.inner == 1 || g.c < 16 || g.c > 512 || pack_width(2, pointers, {g.inner}) != 8) return plan;
  plan.columns = true;
  plan.width = plan.side = 8;
  plan.items = plan.chunk_items = g.c;
  plan.units = g.outer * (g.inner / plan.width);
  plan.per_thread = kSoftmaxStagedItems;
  plan.lanes = static_cast<int>(ceil_div(g.c, 4 * plan.per_thread) * 4);  // whole warps
  plan.threads = plan.lanes * plan.side;
  plan.blocks = ceil_div(plan.units, plan.side);
  return plan;
}

// Rows longer than a block's registers hold, up to what a cluster's shared memory does. A block
// keeps its chunks of kSoftmaxRingRows rows.
inline constexpr int kSoftmaxRingRows = 3;

struct SoftmaxRing {
  int64_t rows = 0;  // 0: not such rows
  int packs = 0;     // of 16 bytes, of a row
  int cluster = 1;   // blocks that share a row
  int chunk = 0;     // packs of a block
};

// `shared_limit`: what one block may have of shared memory.
inline SoftmaxRing plan_softmax_ring(const SoftmaxGeometry& g, int64_t element,
                                     int64_t shared_limit,
                                     std::initializer_list<const void*> pointers) {
  constexpr int64_t kMailBytes = 4096;  // and for the sums of warps, at most
  // Of a block and a row: 64 KB where a block may have 227.
  const int64_t most =
      std::min<int64_t>(4096, (shared_limit - kMailBytes) / (kSoftmaxRingRows * 16));
  const int64_t packs = g.c * element / 16;
  if (g.inner != 1 || element > 4 || packs <= detail::kSoftmaxClusterItems ||
      packs > detail::kSoftmaxMostCluster * most ||
      pack_width(element, pointers, {g.c}) * element != 16) {
    return {};
  }
  SoftmaxRing plan{.rows = g.outer, .packs = static_cast<int>(packs)};
  int64_t cluster = ceil_div(packs, most);
  // Few rows are shared by more blocks.
  while (cluster * 2 <= detail::kSoftmaxMostCluster && g.outer * cluster < 64) cluster *= 2;
  plan.cluster = static_cast<int>(cluster);
  plan.chunk = static_cast<int>(ceil_div(packs, cluster));
  return plan;
}

// Rows of at most 128 values that no 16-byte access divides, in memory that one could read.
struct SoftmaxShortRows {
  int64_t outer = 0;  // rows in all; 0: not such rows
  int c = 0;
  int lanes = 1;     // threads per row, a power of two
  int per_lane = 0;  // values of a row that a thread takes, at most 16
  int rows = 0;      // of a block, a power of two: up to 20 KB where its threads allow

  int64_t blocks() const { return ceil_div(outer, rows); }
};

inline SoftmaxShortRows plan_softmax_short_rows(const SoftmaxGeometry& g, int64_t element,
                                                std::initializer_list<const void*> pointers) {
  const int64_t full = 16 / element;
  if (g.inner != 1 || g.c > 128 || g.c % full == 0 || pack_width(element, pointers, {}) != full)
    return {};
  SoftmaxShortRows plan{.outer = g.outer, .c = static_cast<int>(g.c)};
  plan.lanes = static_cast<int>(ceil_power_of_two(ceil_div(g.c, 16)));
  plan.per_lane = static_cast<int>(ceil_div(g.c, plan.lanes));
  plan.rows = static_cast<int>(
      std::max(kSoftmaxThreads / plan.lanes, detail::floor_power(20480 / (g.c * element))));
  return plan;
}

}  // namespace gradus
