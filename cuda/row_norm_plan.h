// How layer and RMS normalization share rows out among threads; pure host code. What decides the
// order of a sum depends on rows, m, the dtype and the alignment (and for rows that fill more than
// one block on what the card has of clusters and shared memory), never on the number of
// multiprocessors.
#pragma once

#include "cuda/plan.h"

namespace gradus {

// What holds a row together.
enum class RowGroup : uint8_t {
  lanes,    // up to 32 threads of a warp
  warps,    // warps of a block of 256 threads
  blocks,   // a block of 512 threads, or a cluster of up to 8 of them; backward only
  cluster,  // the shared memory of a cluster of blocks of 256 threads; forward only
  split,    // rows are too long for any: cut into chunks and read twice
};

// A row is packs of `width` elements; `lanes` threads in each of `cluster` blocks take its packs in
// turn, `packs` each. A block has a set of `slots` rows at a time and an even part of
// all sets.
struct RowNormPlan {
  RowGroup group = RowGroup::split;
  int width = 1;
  int lanes = 1;    // a power of two
  int packs = 0;    // held in registers
  int cluster = 1;  // blocks of a row
  int slots = 1;
  int stages = 0;            // rows of a slot in shared memory at a time; not of group cluster
  int64_t runs = 0;          // parts of the rows; times `cluster` blocks
  bool interleaved = false;  // a run takes every runs-th set of rows instead of neighbours
  bool overlaps = false;     // the kernel before: straight ones, others where rounds are few
  bool straight = false;     // forward: a run is straight_rows(), past shared memory
  bool whole = false;        // straight: no thread is without a pack, no run without a row
  int64_t shared_bytes = 0;
  int threads() const { return group == RowGroup::cluster ? lanes : lanes * slots; }
  int64_t blocks() const { return runs * cluster; }
};

// What the card can do.
struct RowNormCard {
  int64_t shared_bytes = 0;  // of a block, beside what the kernels use in any case
  bool clusters = false;
};

inline RowNormCard row_norm_card(int major, int minor, bool clusters) {
  const bool large = major == 8 && (minor == 0 || minor == 7);
  const int64_t all = major == 9 || major == 10 ? 227 : large ? 163 : 99;
  return {.shared_bytes = (all - 2) * 1024, .clusters = clusters};
}

namespace detail {

inline constexpr int kRowNormThreads = 256;       // of a block with rows of up to 8 warps
inline constexpr int kRowNormBlockThreads = 512;  // of a block that is a row, or a part of one
// Multiprocessors of the card that the numbers of runs are made for, and those of them on which
// clusters of eight find room at a time: an H100 has 14 or 15 such places.
inline constexpr int64_t kRowNormProcessors = 132;
inline constexpr int64_t kRowNormInClusters = 112;

// 16 values of f32, f16 and bf16 per thread and row, 8 of f64; of rows of a warp in the forward
// pass up to 32, which then need no barrier.
constexpr int most_packs(int64_t element, int width) { return width > 1 && element == 2 ? 2 : 4; }
constexpr int most_lane_packs(int64_t element, int width, int tensors) {
  return tensors == 1 ? 4 : most_packs(element, width);
}

// Forward, rows of warps that go straight into registers, `straight_rows` of them per thread:
// 16-bit ones take twice the arithmetic per byte, part of which is the same for all of them. Blocks
// that a multiprocessor has at a time.
constexpr int straight_rows(int64_t element, int packs) { return element == 2 ? 4 / packs : 1; }
constexpr int straight_blocks(int lanes, int rows) {
  return (rows > 1 ? 1024 : lanes > 256 ? 2048 : 1536) / lanes;
}

// Whether rows that fill their threads have a kernel of their own, without bounds: 16-bit ones take
// so many instructions that it shows.
constexpr bool has_whole_kernel(int64_t element) { return element == 2; }

// Rows of a slot that are in shared memory at a time: about 128 bytes of each tensor per thread.
constexpr int row_stages(int packs) { return packs >= 4 ? 2 : 4; }
inline constexpr int kRowFewStages = 2;  // of the backward pass where rounds are few

// There f32 rows go to twice the threads with half the packs, in blocks of as many rows: one block
// per multiprocessor instead of two, and half the parts of dgamma and dbeta.
inline constexpr int kRowWideThreads = 512;
constexpr bool is_wide_row(int lanes, int64_t element, int width) {
  return element == 4 && width > 1 && lanes <= kRowWideThreads / 4;
}

// Rows that a cluster of the backward pass has in shared memory at a time: the one whose dx is
// being written, the one being added up, others on their way. `bytes`: a thread's of one tensor.
constexpr int cluster_stages(int bytes) { return bytes > 32 ? 3 : 4; }

inline void keep_stages(RowNormPlan& plan, int stages, int tensors, int64_t element) {
  plan.stages = stages;
  plan.shared_bytes =
      int64_t{tensors} * stages * plan.packs * plan.threads() * plan.width * element;
}

// Lanes, packs and slots for rows of `row_packs` packs; false if no block or cluster can hold one.
inline bool share_row(RowNormPlan& plan, int64_t row_packs, int64_t element, int tensors,
                      const RowNormCard& card) {
  const int most = most_packs(element, plan.width);
  const int most_of_lane = most_lane_packs(element, plan.width, tensors);
  const auto power = [](int64_t n) { return static_cast<int>(ceil_power_of_two(n)); };
  plan.packs = most;
  if (row_packs <= 32 * most_of_lane) {
    plan.group = RowGroup::lanes;
    // Where accesses are single elements, which is rare, one kernel is enough.
    const int64_t lanes = plan.width == 1 ? ceil_div(row_packs, most) : row_packs;
    plan.lanes = std::min(32, power(lanes));
    if (plan.width > 1) plan.packs = power(ceil_div(row_packs, plan.lanes));
  } else if (row_packs <= int64_t{most} * kRowNormThreads) {
    plan.group = RowGroup::warps;
    plan.lanes = power(ceil_div(row_packs, most));
  } else if (row_packs <= int64_t{most} * kRowNormBlockThreads * 8) {
    plan.group = RowGroup::blocks;
    plan.lanes = kRowNormBlockThreads;
    plan.cluster = power(ceil_div(row_packs, most * kRowNormBlockThreads));
    if (plan.cluster > 1 && !card.clusters) return false;
  } else {
    return false;
  }
  plan.slots = std::max(1, kRowNormThreads / plan.lanes);
  keep_stages(plan, row_stages(plan.packs), tensors, element);
  return plan.shared_bytes <= card.shared_bytes;
}

// Rows that a cluster has at once, so that gamma and beta, which are as long and in f32, are read
// less often.
constexpr int most_rows(int64_t element) { return element == 2 ? 4 : 2; }

// The shared memory of a cluster's blocks; false if rows are too long. Three blocks fit a
// multiprocessor of 227 KB: one reads while another one writes.
inline bool share_row_in_cluster(RowNormPlan& plan, int64_t rows, int64_t row_packs,
                                 int64_t element, const RowNormCard& card) {
  constexpr int64_t kMostBytes = 72 * 1024;
  plan.group = RowGroup::cluster;
  plan.lanes = kRowNormThreads;
  plan.cluster = card.clusters ? 8 : 1;
  const int64_t piece = ceil_div(row_packs, plan.cluster) * plan.width * element;
  const int64_t most = card.clusters ? kMostBytes : card.shared_bytes;
  plan.slots = most_rows(element);
  if (plan.slots * piece > most || rows < 32 * plan.slots) plan.slots = 1;
  plan.packs = static_cast<int>(piece / (plan.width * element));
  plan.shared_bytes = plan.slots * piece;
  plan.runs = ceil_div(rows, plan.slots);
  return plan.shared_bytes <= most && plan.blocks() <= kMaxGridX;
}

// Runs that the card has at a time, `per_processor` blocks on each multiprocessor.
inline int64_t run_places(const RowNormPlan& plan, int per_processor) {
  if (plan.cluster > 1) return kRowNormInClusters * per_processor / plan.cluster;
  return kRowNormProcessors * per_processor;
}

}  // namespace detail

// rows, m > 0; width as pack_width() gives it, element: bytes.
inline RowNormPlan plan_row_norm_forward(int64_t rows, int64_t m, int64_t element, int width,
                                         const RowNormCard& card) {
  RowNormPlan plan{.width = width};
  if (!detail::share_row(plan, m / width, element, 1, card) || plan.group == RowGroup::blocks) {
    plan = {.width = width};
    if (!detail::share_row_in_cluster(plan, rows, m / width, element, card))
      return {.width = width};
    return plan;
  }
  // Straight: a block per f32 row or per two or four 16-bit ones. Enough of them fit a
  // multiprocessor to cover each other's waits.
  const bool is_long = plan.group == RowGroup::warps || (element == 2 && m / width > 64);
  if (is_long && element <= 4 && width > 1 && rows <= kMaxGridX) {
    if (element == 4 && plan.lanes == 256) plan.lanes = 512, plan.packs = 2;
    if (plan.group == RowGroup::lanes) plan.lanes = 128, plan.packs = 1;
    plan.group = RowGroup::warps;
    const int rows_of_block = detail::straight_rows(element, plan.packs);
    plan.straight = true;
    plan.whole = detail::has_whole_kernel(element) && rows % rows_of_block == 0 &&
                 m == int64_t{plan.packs} * plan.lanes * width;
    plan.runs = ceil_div(rows, rows_of_block);
    plan.slots = 1;
    plan.stages = 0;
    plan.shared_bytes = 0;
    plan.overlaps = true;
    return plan;
  }
  // One run per place, or short ones where there are many: places that end early find more work.
  const int64_t sets = ceil_div(rows, plan.slots);
  const int64_t places = detail::run_places(plan, plan.packs * width > 16 ? 2 : 3);
  plan.interleaved = sets <= 8 * places;
  plan.overlaps = plan.interleaved;
  plan.runs = plan.interleaved ? std::min(sets, places) : ceil_div(sets, 4);
  plan.runs = std::min(plan.runs, kMaxGridX);
  return plan;
}

// Each run gives one part of dgamma and dbeta.
inline RowNormPlan plan_row_norm_backward(int64_t rows, int64_t m, int64_t element, int width,
                                          const RowNormCard& card) {
  RowNormPlan plan{.width = width};
  if (!detail::share_row(plan, m / width, element, 2, card)) return {.width = width};
  if (plan.group == RowGroup::blocks) {
    const auto bytes = static_cast<int>(plan.packs * width * element);
    detail::keep_stages(plan, detail::cluster_stages(bytes), 2, element);
    if (plan.shared_bytes > card.shared_bytes) return {.width = width};
  }
  const bool full = plan.packs == detail::most_packs(element, width);
  const auto share_runs = [&](int64_t places) {  // returns the rounds
    const int64_t sets = ceil_div(rows, plan.slots);
    plan.runs = std::clamp<int64_t>(ceil_div(sets, 2), 1, places);
    return ceil_div(sets, plan.runs);
  };
  int64_t rounds = share_runs(detail::run_places(plan, (full ? 512 : 1024) / plan.threads()));
  plan.overlaps = rounds <= 32;
  if (plan.overlaps && plan.group != RowGroup::blocks) {
    if (plan.group == RowGroup::warps && detail::is_wide_row(plan.lanes, element, width)) {
      plan.packs /= 2;
      plan.lanes *= 2;
      plan.slots = detail::kRowWideThreads / plan.lanes;
      rounds = share_runs(detail::run_places(plan, 1));
    }
    // Rows that are fetched further ahead leave the last rounds, if few, with nothing to read.
    detail::keep_stages(plan, detail::kRowFewStages, 2, element);
  }
  // No more runs than finish in as many rounds: parts cost time.
  if (plan.overlaps) plan.runs = ceil_div(ceil_div(rows, plan.slots), rounds);
  plan.interleaved = true;
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
  const Chunks runs = plan_chunks(rows, 16, wanted);
  plan.runs = runs.count;
  plan.rows_per_run = runs.size;
  return plan;
}

}  // namespace gradus
