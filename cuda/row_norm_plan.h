// How layer and RMS normalization share rows out among threads; pure host code. What decides the
// order of a sum depends on rows, m, the dtype and the alignment (and for rows that do not fit the
// card's shared memory on its size), never on the number of multiprocessors.
#pragma once

#include <bit>

#include "cuda/plan.h"

namespace gradus {

// Rows are packs of `width` elements; row r of a block's run belongs to slot r % slots, and the
// `lanes` threads of a slot take its packs in turn.
struct RowNormPlan {
  bool split = false;  // rows are too long for a block: cut into chunks, read twice
  int width = 1;       // elements per access
  int lanes = 1;       // threads of a row, a power of two
  int packs = 0;       // accesses per thread that are held in registers; 0: held in shared memory
  int slots = 1;       // rows of a block at a time
  int64_t blocks = 0;
  int64_t rows_per_block = 0;  // forward; backward runs are even parts of the rows
  int64_t shared_bytes = 0;
  int threads() const { return lanes * slots; }
};

namespace detail {

inline constexpr int kRowNormThreads = 256;  // at least; more where a row needs them
inline constexpr int kRowNormStages = 2;     // rows of a slot that are in shared memory at a time
// Multiprocessors of the card that the numbers of blocks are made for.
inline constexpr int64_t kRowNormProcessors = 132;

// 16 values of f32, f16 and bf16 per thread and row, 8 of f64.
inline int most_packs(int64_t element, int width) { return width > 1 && element == 2 ? 2 : 4; }

// Lanes, packs and slots for rows of `row_packs` packs; false if that needs more than `most_lanes`.
inline bool share_row(RowNormPlan& plan, int64_t row_packs, int64_t element, int most_lanes) {
  const int most = most_packs(element, plan.width);
  if (row_packs > int64_t{most} * most_lanes) return false;
  const auto power = [](int64_t n) {
    return static_cast<int>(std::bit_ceil(static_cast<uint64_t>(n)));
  };
  if (row_packs <= 32) {
    plan.lanes = power(row_packs);
    plan.packs = 1;
  } else if (row_packs <= 32 * most) {
    plan.lanes = 32;
    plan.packs = power(ceil_div(row_packs, 32));
  } else {
    plan.lanes = power(ceil_div(row_packs, most));
    plan.packs = most;
  }
  if (plan.width == 1) plan.packs = most;  // rare: one kernel is enough
  plan.slots = std::max(1, kRowNormThreads / plan.lanes);
  return true;
}

}  // namespace detail

// rows, m > 0; width as pack_width() gives it, element: bytes; shared_limit: bytes that a block may
// have.
inline RowNormPlan plan_row_norm_forward(int64_t rows, int64_t m, int64_t element, int width,
                                         int64_t shared_limit) {
  RowNormPlan plan{.width = width};
  const int64_t access = width * element;
  if (detail::share_row(plan, m / width, element, 1024)) {
    plan.shared_bytes = detail::kRowNormStages * plan.packs * plan.threads() * access;
  } else {
    plan.lanes = 1024;
    plan.packs = 0;
    plan.shared_bytes = m * element;
  }
  if (plan.shared_bytes > shared_limit) return {.split = true, .width = width};
  // About eight runs per place on the card: few enough that the first row of a run, which nothing
  // hides, does not count, and enough that places which end early find more work.
  const int64_t sets = ceil_div(rows, plan.slots);
  const int64_t places = detail::kRowNormProcessors * (1024 / plan.threads());
  const int64_t sets_per_block = std::clamp<int64_t>(ceil_div(sets, places), 1, 8);
  plan.rows_per_block = sets_per_block * plan.slots;
  plan.blocks = ceil_div(sets, sets_per_block);
  return plan;
}

// Each block owns an even part of the rows and gives one part of dgamma and dbeta.
inline RowNormPlan plan_row_norm_backward(int64_t rows, int64_t m, int64_t element, int width,
                                          int64_t shared_limit) {
  RowNormPlan plan{.width = width};
  if (!detail::share_row(plan, m / width, element, 512)) return {.split = true, .width = width};
  plan.shared_bytes =
      2 * detail::kRowNormStages * plan.packs * plan.threads() * int64_t{width} * element;
  if (plan.shared_bytes > shared_limit) return {.split = true, .width = width};
  const bool full = plan.packs == detail::most_packs(element, width);
  const int64_t places = detail::kRowNormProcessors * ((full ? 512 : 1024) / plan.threads());
  plan.blocks = std::clamp<int64_t>(ceil_div(rows, 2 * plan.slots), 1, places);
  return plan;
}

// Long rows: chunks of kChunk elements, each a block's; for the columns of the backward pass tiles
// of 256 packs by runs of rows.
struct SplitRowsPlan {
  static constexpr int kThreads = 256;
  static constexpr int64_t kChunk = 4096;
  int64_t chunks;  // per row
  int64_t tiles;   // per row
  int64_t runs;
  int64_t rows_per_run;
};

inline SplitRowsPlan plan_split_rows(int64_t rows, int64_t m, int width) {
  SplitRowsPlan plan{};
  plan.chunks = ceil_div(m, SplitRowsPlan::kChunk);
  plan.tiles = ceil_div(m / width, SplitRowsPlan::kThreads);
  const int64_t wanted = ceil_div(8 * detail::kRowNormProcessors, plan.tiles);
  const Chunks runs = plan_chunks(rows, 8, wanted);
  plan.runs = runs.count;
  plan.rows_per_run = runs.size;
  return plan;
}

// Dynamic shared memory that a block may ask for, by compute capability, less what the kernels use
// besides.
inline int64_t row_norm_shared_limit(int major, int minor) {
  const bool large = major == 8 && (minor == 0 || minor == 7);
  const int64_t all = major == 9 || major == 10 ? 227 : large ? 163 : 99;
  return (all - 2) * 1024;
}

}  // namespace gradus
