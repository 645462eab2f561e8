// How group normalization is shared out among threads; pure host code. All of it depends on the
// shape, the element and the alignment, and on whether the card has clusters; for channels-last
// tensors also on how much shared memory its blocks may have.
#pragma once

#include "core/ops/group_norm.h"
#include "cuda/device/strided_plan.h"
#include "cuda/element_lanes.h"
#include "cuda/plan.h"

namespace gradus {

// Contiguous tensors: a set is one run of memory, of which a block holds a region in shared memory.
// A region is rows_per_piece whole rows (channels) of `cols` packs, or, where not even one row
// fits, one of `segments` parts of a row. Threads are laid over it as `slots` rows at once, with
// lanes_per_row threads along each. Packs of one element are for rows that larger ones do not
// divide or pointers that are not aligned; a block moves those as one run.
struct GroupNormSlab {
  int64_t sets = 0;
  int64_t m = 0;  // elements of a set
  int64_t s = 0;  // elements of a row
  int64_t groups = 1;
  int64_t rows = 0;  // of a set
  int width = 1;     // elements of a pack

  int pieces = 1;    // regions, and so blocks, of a set
  int segments = 1;  // parts of a row
  int rows_per_piece = 0;
  int cols = 0;         // packs along a row of a region
  int last_cols = 0;    // the same in the last segment
  bool on_chip = true;  // one block or cluster holds a set; else statistics go through memory

  bool by_block = true;  // else several sets per block, each by part of a warp
  // Packs of a lane where warps have whole rows in registers, else 0: sets of one row, each a
  // warp's, in the forward pass, and sets of two to kMostWarpRows rows, each a block's, in both.
  static constexpr int kRowThreads = 128;
  static constexpr int kMostWarpRows = kRowThreads / 32;
  static constexpr int kMostRowElements = 1024;
  int row_packs = 0;
  int sets_per_block = 1;
  int lanes_per_set = 32;
  int lanes_per_row = 32;
  int slots = 1;
  int threads = 32;
  int tensor_bytes = 0;  // of shared memory, for the block's region or regions of one tensor
  FastDivisor by_pieces, by_segments, by_groups, by_lanes_per_set, by_lanes_per_row;

  // Forward, 16-bit sets of one row that is longer: a block's, in its registers.
  static constexpr int kBlockRowThreads = 128, kBlockRowPacks = 4;
  bool is_block_row(int64_t element) const {
    return element == 2 && width == 8 && rows == 1 && segments == 1 && row_packs == 0 &&
           cols > kBlockRowThreads && cols <= kBlockRowThreads * kBlockRowPacks;
  }

  int64_t numel() const { return sets * m; }
  int64_t region_packs() const { return int64_t{rows_per_piece} * cols; }
  int64_t blocks() const {
    return by_block ? sets * pieces : ceil_div(sets, int64_t{sets_per_block});
  }
};

namespace detail {

// Bytes of a region. With two tensors two blocks fit a multiprocessor of 227 KB, and one fits one
// of 99 KB; of f64 a block needs more than 1 KB beside them.
constexpr int64_t region_bytes(int64_t element) { return (element == 8 ? 48 : 49) * 1024; }
inline constexpr int64_t kMostClusterBlocks = 8;
// Packs up to which part of a warp takes a set, per tensor held: no barriers then.
inline constexpr int64_t kWarpPacks[] = {512, 256};
// Packs of one thread that a block aims at, per tensor held; single elements.
inline constexpr int64_t kThreadPacks[] = {12, 6}, kThreadElements[] = {64, 32};
// Single elements of one thread where part of a warp takes a set.
inline constexpr int64_t kWarpElements = 64;
inline constexpr int64_t kMostWarps = 16;
// Warps of a block of several sets: fewer where they hold much, so that a multiprocessor fills up.
inline constexpr int kWarpsOfSmallSets = 4;
inline constexpr int64_t kSmallSetsBytes = 16 * 1024;

// Cuts each set into regions of at most `most` packs, as equal as may be.
inline void cut_set(GroupNormSlab& plan, int64_t most) {
  const int64_t row_packs = plan.s / plan.width;
  if (row_packs <= most) {
    const int64_t wanted = ceil_div(plan.rows, most / row_packs);
    plan.rows_per_piece = static_cast<int>(ceil_div(plan.rows, wanted));
    plan.pieces = static_cast<int>(ceil_div(plan.rows, int64_t{plan.rows_per_piece}));
    plan.segments = 1;
    plan.cols = plan.last_cols = static_cast<int>(row_packs);
    return;
  }
  const int64_t wanted = ceil_div(row_packs, most);
  plan.cols = static_cast<int>(ceil_div(row_packs, wanted));
  plan.segments = static_cast<int>(ceil_div(row_packs, int64_t{plan.cols}));
  plan.last_cols = static_cast<int>(row_packs - int64_t{plan.segments - 1} * plan.cols);
  plan.rows_per_piece = 1;
  plan.pieces = static_cast<int>(plan.rows * plan.segments);
}

inline void share_by_warp(GroupNormSlab& plan, int64_t set_bytes) {
  plan.by_block = false;
  const int64_t rows = ceil_power_of_two(plan.rows);
  int64_t lanes = ceil_power_of_two(plan.cols) * rows;
  if (plan.width == 1) lanes = ceil_power_of_two(ceil_div(plan.m, kWarpElements));
  plan.lanes_per_set = static_cast<int>(std::min<int64_t>(32, lanes));
  plan.lanes_per_row = static_cast<int>(std::max<int64_t>(1, plan.lanes_per_set / rows));
  plan.slots = plan.lanes_per_set / plan.lanes_per_row;
  const int64_t warp_bytes = set_bytes * 32 / plan.lanes_per_set;
  const bool is_large = kWarpsOfSmallSets * warp_bytes > kSmallSetsBytes;
  plan.threads = 32 * (is_large ? kWarpsOfSmallSets / 2 : kWarpsOfSmallSets);
  plan.sets_per_block = plan.threads / plan.lanes_per_set;
}

inline void share_by_block(GroupNormSlab& plan, int64_t per_thread) {
  const int64_t each = 32 * per_thread, rows = plan.rows_per_piece;
  int64_t warps = std::clamp<int64_t>((plan.region_packs() + each / 2) / each, 1, kMostWarps);
  if (rows < warps) {  // several warps along a row
    const int64_t along = std::max<int64_t>(1, (warps + rows / 2) / rows);
    warps = std::min(kMostWarps / rows, along) * rows;
    plan.slots = static_cast<int>(rows);
    plan.lanes_per_row = static_cast<int>(32 * warps / rows);
  } else {
    plan.lanes_per_row = static_cast<int>(std::min<int64_t>(32, ceil_power_of_two(plan.cols)));
    if (plan.width == 1) plan.lanes_per_row = lanes_of_elements(rows, plan.cols, 32 * warps);
    plan.slots = static_cast<int>(32 * warps / plan.lanes_per_row);
  }
  plan.threads = plan.lanes_per_set = static_cast<int>(32 * warps);
}

// GroupNormSlab::row_packs of an otherwise complete plan.
inline int packs_in_registers(const GroupNormSlab& plan, int64_t element, int tensors) {
  if (element > 4 || plan.width * element != 16 || plan.s > GroupNormSlab::kMostRowElements)
    return 0;
  const auto packs = static_cast<int>(ceil_power_of_two(ceil_div(int64_t{plan.cols}, 32)));
  if (plan.rows == 1) return tensors == 1 && !plan.by_block && plan.lanes_per_row == 32 ? packs : 0;
  // With one pack per lane too few bytes would be under way.
  return plan.rows <= GroupNormSlab::kMostWarpRows && packs > 1 ? packs : 0;
}

}  // namespace detail

// `tensors`: held at once, 1 in the forward and 2 in the backward pass. g is not empty and not
// channels-last; `width` divides s.
inline GroupNormSlab plan_group_norm_slab(const GroupNormGeometry& g, int width, int64_t element,
                                          int tensors, bool has_clusters) {
  GroupNormSlab plan;
  plan.sets = g.sets();
  plan.m = g.m();
  plan.s = g.s;
  plan.groups = g.g;
  plan.rows = g.channels();
  plan.width = width;
  const int64_t begin = width == 1 ? 16 : 0;  // a run begins anywhere in its first 16 bytes
  const int64_t most = (detail::region_bytes(element) - begin) / (width * element);
  const auto fits = [&] {
    return plan.pieces == 1 || (has_clusters && plan.pieces <= detail::kMostClusterBlocks);
  };
  detail::cut_set(plan, most);
  if (!fits() && tensors == 1) detail::cut_set(plan, 2 * most);
  plan.on_chip = fits();
  if (!plan.on_chip) detail::cut_set(plan, most);
  if (plan.pieces == 1 && plan.region_packs() <= detail::kWarpPacks[tensors - 1]) {
    detail::share_by_warp(plan, tensors * plan.m * element);
  } else {
    const auto& each = width == 1 ? detail::kThreadElements : detail::kThreadPacks;
    detail::share_by_block(plan, each[tensors - 1]);
  }
  plan.row_packs = detail::packs_in_registers(plan, element, tensors);
  const int64_t bytes = plan.region_packs() * width * element * plan.sets_per_block;
  plan.tensor_bytes = static_cast<int>(ceil_div(begin + bytes, 16) * 16);
  plan.by_pieces = FastDivisor(static_cast<uint32_t>(plan.pieces));
  plan.by_segments = FastDivisor(static_cast<uint32_t>(plan.segments));
  plan.by_groups = FastDivisor(static_cast<uint32_t>(plan.groups));
  plan.by_lanes_per_set = FastDivisor(static_cast<uint32_t>(plan.lanes_per_set));
  plan.by_lanes_per_row = FastDivisor(static_cast<uint32_t>(plan.lanes_per_row));
  return plan;
}

// Channels-last tensors: a block takes rows_per_chunk rows (positions) of one sample and `lanes`
// packs of channels; its threads take kThreads / lanes rows at once, kBatch times before they add
// up.
struct GroupNormColumns {
  static constexpr int kThreads = 256;
  static constexpr int kBatch = 8;
  int64_t n = 0, c = 0, s = 0;
  int64_t groups = 1;
  int width = 1;
  int lanes = 1;   // a power of two, at most 32
  int tiles = 1;   // blocks across the channels
  int chunks = 1;  // blocks along the rows of a sample
  int64_t rows_per_chunk = 0;
  FastDivisor by_tiles, by_chunks, by_channels;
  int64_t blocks() const { return n * tiles * chunks; }
};

inline GroupNormColumns plan_group_norm_columns(const GroupNormGeometry& g, int width) {
  constexpr int64_t kManyBlocks = 2 * kTargetBlocks;
  GroupNormColumns plan;
  plan.n = g.n, plan.c = g.c, plan.s = g.s;
  plan.groups = g.g;
  plan.width = width;
  const int64_t packs = g.c / width;
  plan.lanes = static_cast<int>(std::min<int64_t>(32, ceil_power_of_two(packs)));
  plan.tiles = static_cast<int>(ceil_div(packs, int64_t{plan.lanes}));
  const int64_t batch = GroupNormColumns::kThreads / plan.lanes * GroupNormColumns::kBatch;
  const int64_t blocks = g.n * plan.tiles * ceil_div(g.s, batch);  // of one batch per thread
  const int64_t batches = std::min<int64_t>(3, blocks / kManyBlocks);
  plan.rows_per_chunk = batch * std::max({int64_t{1}, batches, blocks / (8 * kManyBlocks)});
  plan.chunks = static_cast<int>(ceil_div(g.s, plan.rows_per_chunk));
  plan.by_tiles = FastDivisor(static_cast<uint32_t>(plan.tiles));
  plan.by_chunks = FastDivisor(static_cast<uint32_t>(plan.chunks));
  plan.by_channels = FastDivisor(static_cast<uint32_t>(g.channels()));
  return plan;
}

// Channels-last tensors whose samples fit on chip, all channels of one or a tile of them: a block,
// or each block of a cluster, holds rows_per_piece rows of a tile.
struct GroupNormHeld {
  static constexpr int kThreads = 256;
  static constexpr int kChannels = 4;  // of a thread, at most
  int64_t n = 0;
  int64_t s = 0;
  int64_t c = 0;
  int64_t all_groups = 1;
  int tiles = 1;     // of a sample
  int tile = 0;      // channels
  int groups = 1;    // of a tile
  int channels = 0;  // of a group
  int lanes = 1;     // threads that copy a row, 16 bytes each: a power of two
  int columns = 1;   // threads that add it up and write it: a power of two
  int slots = 1;     // threads of a column after each warp has added up its own
  int lanes_per_group = 1;
  int pieces = 1;
  int rows_per_piece = 0;
  int tensor_bytes = 0;  // of shared memory, for the rows of one tensor
  int shared_bytes = 0;  // for those of all tensors, for sums and terms
  bool fits = false;
  FastDivisor by_pieces, by_tiles, by_channels;
  int64_t blocks() const { return n * tiles * pieces; }
  GRADUS_HD int rows_of(int piece) const {
    const int64_t rest = s - int64_t{piece} * rows_per_piece;
    return rest < 0 ? 0 : rest < rows_per_piece ? static_cast<int>(rest) : rows_per_piece;
  }
};

namespace detail {

// Most bytes of shared memory with which three blocks, or two, fit a multiprocessor of 227 KB.
inline constexpr int64_t kHeldShared[] = {74 * 1024, 111 * 1024};
// What the kernels have of it beside that, at most.
inline constexpr int64_t kHeldOwnBytes = 128;
// Channels that a tile has at least, if there are as many: less memory per row is slower to read,
// more makes larger clusters, which wait for each other (bench/log_group_norm.md).
inline constexpr int64_t kTileChannels = 32;
// Blocks from which larger ones are better than more, bytes of rows that a block has at least, and
// up to which it takes more channels instead of leaving them to others.
inline constexpr int64_t kHeldBlocks = 512, kHeldLeastBytes = 16 * 1024, kHeldMoreBytes = 50 * 1024;

// Groups of a tile: all, halved as long as there are channels enough; of short samples more again,
// as long as there are blocks enough.
inline int64_t held_tile_groups(const GroupNormGeometry& g, int width, int64_t element,
                                int tensors) {
  const auto tile = [&](int64_t groups) { return groups * g.channels(); };
  const auto suits = [&](int64_t groups) {
    return tile(groups) >= kTileChannels && tile(groups) % width == 0;
  };
  const auto is_short = [&](int64_t groups) {
    return g.n * (g.g / groups) >= kHeldBlocks &&
           g.s * tile(groups) * element * tensors <= kHeldMoreBytes &&
           tile(groups) <=
               int64_t{GroupNormHeld::kThreads} * std::min(width, GroupNormHeld::kChannels);
  };
  int64_t groups = g.g;
  while (groups % 2 == 0 && suits(groups / 2)) groups /= 2;
  while (groups < g.g && is_short(2 * groups)) groups *= 2;
  return groups;
}

}  // namespace detail

// `shared_limit`: what one block may have of shared memory.
inline GroupNormHeld plan_group_norm_held(const GroupNormGeometry& g, int width, int64_t element,
                                          int64_t accumulator, int tensors, bool has_clusters,
                                          int64_t shared_limit) {
  GroupNormHeld plan;
  const int64_t groups = detail::held_tile_groups(g, width, element, tensors);
  const int64_t tile = groups * g.channels();
  const int64_t columns = ceil_power_of_two(tile / std::min(width, plan.kChannels));
  if (columns > plan.kThreads) return plan;
  plan.n = g.n, plan.s = g.s, plan.c = g.c;
  plan.all_groups = g.g;
  plan.tiles = static_cast<int>(g.g / groups);
  plan.tile = static_cast<int>(tile);
  plan.groups = static_cast<int>(groups);
  plan.channels = static_cast<int>(g.channels());
  plan.columns = static_cast<int>(columns);
  plan.lanes = static_cast<int>(ceil_power_of_two(tile / width));
  plan.slots = plan.kThreads / std::max(plan.columns, 32);
  plan.lanes_per_group = static_cast<int>(std::min<int64_t>(32, ceil_power_of_two(plan.channels)));
  const auto rows_bytes = [&] {
    return ceil_div(ceil_div(g.s, int64_t{plan.pieces}) * tile * element, int64_t{16}) * 16;
  };
  const auto bytes = [&] {
    const int64_t boxes = plan.pieces > 1 ? plan.pieces : 0;
    const int64_t sums = (2 * plan.slots + 3) * tile + (2 + 2 * boxes) * groups;
    return tensors * rows_bytes() + sums * accumulator;
  };
  const auto suits = [&] {
    const bool is_small = tensors * rows_bytes() <= 2 * detail::kHeldLeastBytes;
    return bytes() <= detail::kHeldShared[0] && (is_small || plan.blocks() >= detail::kHeldBlocks);
  };
  const int64_t most_pieces = has_clusters ? detail::kMostClusterBlocks : 1;
  while (plan.pieces < most_pieces && !suits()) plan.pieces *= 2;
  if (bytes() > std::min(shared_limit - detail::kHeldOwnBytes, detail::kHeldShared[1])) return {};
  plan.fits = true;
  plan.rows_per_piece = static_cast<int>(ceil_div(g.s, int64_t{plan.pieces}));
  plan.tensor_bytes = static_cast<int>(rows_bytes());
  plan.shared_bytes = static_cast<int>(bytes());
  plan.by_pieces = FastDivisor(static_cast<uint32_t>(plan.pieces));
  plan.by_tiles = FastDivisor(static_cast<uint32_t>(plan.tiles));
  plan.by_channels = FastDivisor(static_cast<uint32_t>(plan.channels));
  return plan;
}

// The sums of dgamma and dbeta over `rows` partial sums per channel: small blocks, which soon find
// room, of few channels, each over one chunk of the rows; a second pass adds the chunks.
inline constexpr int kGroupNormSampleChannels = 8;
inline Chunks plan_group_norm_samples(int64_t rows, int64_t c) {
  const int64_t tiles = ceil_div(c, int64_t{kGroupNormSampleChannels});
  return plan_chunks(rows, 512, std::max<int64_t>(1, kTargetBlocks / tiles));
}

}  // namespace gradus
