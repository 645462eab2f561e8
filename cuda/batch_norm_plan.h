// How batch normalization is spread over a GPU: host code, tested without one. Chunks decide the
// order of sums and depend on the shape, the pack width, the number of inputs and, for
// channels-last, on whether statistics are the batch's; which plan is taken, on what the card has
// of clusters, shared memory and L2 and on what is wanted, too (core/ops/batch_norm.h).
#pragma once

#include "core/host_device.h"
#include "cuda/device/strided_plan.h"
#include "cuda/element_lanes.h"
#include "cuda/plan.h"

namespace gradus {

inline constexpr int kBatchNormThreads = 256;

// Packs that a thread loads together before it uses them.
constexpr int batch_norm_unroll(int width) { return width == 1 ? 8 : 4; }
// The same in evaluation, where 16-bit packs do better in many small blocks.
constexpr int batch_norm_evaluate_unroll(int width) {
  return width == 8 ? 2 : batch_norm_unroll(width);
}

// Contiguous tensors. A channel is n rows of s elements, c·s apart; its packs of `width` elements
// are counted through from 0 to `packs`, and a block takes a run of them: a chunk to sum, or a
// slice to write. Blocks are numbered with the channel fastest, so that they sweep memory.
struct BatchNormRows {
  int64_t c = 0;
  int64_t channel = 0;    // elements from one channel's first to the next one's: s
  int64_t row = 0;        // elements from one row of a channel to the next: c·s
  int64_t row_packs = 0;  // packs of a row
  int64_t packs = 0;      // packs of a channel
  int64_t group = 0;      // packs that a block loads together
  int64_t chunk = 0, chunks = 0;
  int64_t slice = 0, slices = 0;
  // What a step over a block's threads' packs adds: packs beyond rows in full, elements of both,
  // and elements on top where that crosses into another row.
  int64_t step_packs = 0, step = 0, wrap = 0;
  FastDivisor by_c{}, by_row_packs{};  // the latter where a channel has less than 2^30 packs

  void set_step(int threads, int width) {
    step_packs = threads % row_packs;
    step = threads / row_packs * row + step_packs * width;
    wrap = row - row_packs * width;
  }
};

inline BatchNormRows plan_batch_norm_rows(int64_t n, int64_t c, int64_t s, int width) {
  // Enough chunks to fill any current card, few enough to be added up by one warp; long enough that
  // their own reduction costs nothing.
  constexpr int64_t kBlocks = 640, kMostChunks = 512;
  const int64_t group = kBatchNormThreads * batch_norm_unroll(width);
  BatchNormRows plan{.c = c, .channel = s, .row = c * s, .row_packs = s / width};
  plan.packs = n * plan.row_packs;
  plan.group = group;
  const auto in_groups = [group](int64_t packs) { return ceil_div(packs, group) * group; };
  const int64_t even = std::clamp(in_groups(plan.packs * c / kBlocks), group, 4 * group);
  plan.chunk = std::max(even, in_groups(ceil_div(plan.packs, kMostChunks)));
  plan.chunks = ceil_div(plan.packs, plan.chunk);
  // A block that writes adds up the chunks first: many of them want longer slices.
  plan.slice = (plan.chunks <= 64 ? 2 : 8) * group;
  plan.slices = ceil_div(plan.packs, plan.slice);
  plan.set_step(kBatchNormThreads, width);
  const auto divisor = [](int64_t d) {
    return FastDivisor(static_cast<uint32_t>(std::min(d, int64_t(1) << 31)));
  };
  plan.by_c = divisor(c);
  plan.by_row_packs = divisor(plan.row_packs);
  return plan;
}

// Contiguous tensors that do not fit L2, in one launch: each step sums a channel and writes the one
// that was summed `lag` steps before.
struct BatchNormWaves {
  int64_t lag = 0;        // 0: not to be used
  uint32_t per_step = 0;  // blocks: chunks, then slices
  int64_t blocks = 0;
  FastDivisor by_step{};
};

// Bytes of inputs between a channel's sums and its results: as many as pass by while its last
// blocks end, so that nothing waits, and as find room in the L2 of a large card.
inline constexpr int64_t kBatchNormLagBytes = 16'000'000;

// rows: gets chunks and slices that suit.
inline BatchNormWaves plan_batch_norm_waves(BatchNormRows& rows, int pack_bytes, int inputs) {
  const int64_t channel_bytes = rows.packs * pack_bytes * inputs;
  const int64_t lag = ceil_div(kBatchNormLagBytes, channel_bytes);
  if (lag < 2 || rows.c < 2 * lag) return {};
  rows.chunk = 2 * rows.group;
  rows.chunks = ceil_div(rows.packs, rows.chunk);
  rows.slice = 2 * rows.group / inputs;  // what two loads of each thread bring
  rows.slices = ceil_div(rows.packs, rows.slice);
  const int64_t per_step = rows.chunks + rows.slices;
  if (per_step * (rows.c + lag) > INT32_MAX) return {};
  return {.lag = lag,
          .per_step = static_cast<uint32_t>(per_step),
          .blocks = per_step * (rows.c + lag),
          .by_step = FastDivisor(static_cast<uint32_t>(per_step))};
}

// Contiguous tensors whose channels fit a cluster of blocks: block r of a channel's cluster holds
// packs r·piece, ... of each input, and memory is read once.
struct BatchNormHeld {
  // Of a block's packs. Three blocks on a multiprocessor, or four: one reads while another one
  // writes. Where it takes four for all to be at work at once, they may keep some packs in
  // registers, kNarrowPacks of all inputs per thread.
  static constexpr int64_t kMostBytes = 72 * 1024, kBytesOfFour = 52 * 1024;
  static constexpr int kMostBlocks = 8, kNarrowPacks = 4;
  // One block on a multiprocessor, which keeps packs in registers as well: where all channels find
  // room on a card at once, which is better than one and a half rounds.
  static constexpr int kWideThreads = 512, kWidePacks = 8;
  static constexpr int64_t kWideBlocks = 128;

  int cluster = 0;  // blocks; 0: it does not fit, or would leave most of the card idle
  bool wide = false;
  int packs = 0;      // of a channel
  int piece = 0;      // of a block, of each input
  int kept = 0;       // of a thread in registers, of each input
  int in_shared = 0;  // of the piece in shared memory
  int bytes = 0;      // shared memory
  // As in BatchNormRows, for steps over threads() packs; 32 bits count the tensor's elements.
  uint32_t channel = 0, row = 0, row_packs = 0, step_packs = 0, step = 0, wrap = 0;
  int threads() const { return wide ? kWideThreads : kBatchNormThreads; }
};

// shared_limit: bytes that one block may have of shared memory.
inline BatchNormHeld plan_batch_norm_held(const BatchNormRows& rows, int pack_bytes, int inputs,
                                          int64_t shared_limit) {
  constexpr int64_t kBusyBlocks = 128, kSmall = int64_t(1) << 20;
  constexpr int64_t kForParts = 5120;  // bytes that the kernels have of shared memory beside packs
  const auto pieces = [&](int blocks) { return ceil_div(rows.packs, blocks); };
  const auto width = static_cast<int>(rows.channel / rows.row_packs);
  if (rows.c * rows.packs * width > UINT32_MAX) return {};
  BatchNormHeld plan{.cluster = BatchNormHeld::kMostBlocks};
  const auto hold = [&](int packs_of_thread) {
    BatchNormRows walked = rows;
    walked.set_step(plan.threads(), width);
    plan.kept = packs_of_thread / inputs;
    plan.packs = static_cast<int>(rows.packs);
    plan.channel = static_cast<uint32_t>(walked.channel);
    plan.row = static_cast<uint32_t>(walked.row);
    plan.row_packs = static_cast<uint32_t>(walked.row_packs);
    plan.step_packs = static_cast<uint32_t>(walked.step_packs);
    plan.step = static_cast<uint32_t>(walked.step);
    plan.wrap = static_cast<uint32_t>(walked.wrap);
    plan.piece = static_cast<int>(pieces(plan.cluster));
    plan.in_shared = static_cast<int>(std::max(0, plan.piece - plan.kept * plan.threads()));
    plan.bytes = plan.in_shared * pack_bytes * inputs;
  };
  const int64_t narrow_blocks = rows.c * plan.cluster;
  const int64_t narrow_bytes = pieces(plan.cluster) * pack_bytes * inputs;
  const bool busy = narrow_blocks >= kBusyBlocks || rows.c * rows.packs * pack_bytes <= kSmall;
  const bool narrow = narrow_bytes <= BatchNormHeld::kMostBytes && busy;
  // Three or four narrow blocks for each multiprocessor are faster than a wide one.
  if (narrow && narrow_blocks >= 3 * BatchNormHeld::kWideBlocks &&
      narrow_blocks <= 4 * BatchNormHeld::kWideBlocks &&
      pieces(plan.cluster) >= kBatchNormThreads) {
    const int64_t kept_bytes = BatchNormHeld::kNarrowPacks * kBatchNormThreads * pack_bytes;
    const bool four_fit = narrow_bytes <= BatchNormHeld::kBytesOfFour;
    const bool four_fit_kept = narrow_bytes - kept_bytes <= BatchNormHeld::kBytesOfFour;
    if (four_fit || four_fit_kept || inputs == 1) {
      hold(!four_fit && four_fit_kept ? BatchNormHeld::kNarrowPacks : 0);
      return plan;
    }
  }
  while (plan.cluster > 1 && rows.c * plan.cluster > BatchNormHeld::kWideBlocks) plan.cluster /= 2;
  const int64_t blocks = rows.c * plan.cluster;
  const int64_t in_registers =
      int64_t{BatchNormHeld::kWideThreads} * BatchNormHeld::kWidePacks / inputs;
  if (blocks <= BatchNormHeld::kWideBlocks && 8 * blocks >= 7 * BatchNormHeld::kWideBlocks &&
      pieces(plan.cluster) >= in_registers &&
      (pieces(plan.cluster) - in_registers) * pack_bytes * inputs + kForParts <= shared_limit) {
    plan.wide = true;
    hold(BatchNormHeld::kWidePacks);
    return plan;
  }
  plan.cluster = BatchNormHeld::kMostBlocks;
  if (!narrow) return {};
  // A block should have a pack for each thread at least.
  while (plan.cluster > 1 && pieces(plan.cluster) < kBatchNormThreads) plan.cluster /= 2;
  hold(0);
  return plan;
}

// Contiguous tensors with planes that packs of 16 bytes do not divide: a cluster holds a band of
// neighbouring channels, whose part of a sample is a run that they do divide. Block r of the
// cluster has samples r·samples, ... and the threads of some warps for each channel, `lanes` along
// a plane.
struct BatchNormBands {
  static constexpr int kMostChannels = kBatchNormThreads / 32;
  static constexpr int64_t kRunBytes = 512;       // of a band, where there are channels enough
  static constexpr int64_t kMostBytes = 110'000;  // two blocks on a multiprocessor
  static constexpr int64_t kBusyBlocks = 512;

  BatchNormHeld held{};  // of the band, as if it were one channel; whole runs
  int channels = 1;      // of the band, a power of two
  int plane = 0;         // elements
  int samples = 0;
  int lanes = 32;
};

// `width`: of packs of 16 bytes. held.cluster is 0 where it does not suit.
inline BatchNormBands plan_batch_norm_bands(int64_t n, int64_t c, int64_t s, int width, int inputs,
                                            int64_t shared_limit) {
  constexpr int64_t kPack = 16, kForParts = 5120;
  BatchNormBands plan;
  int64_t channels = 1;
  while (channels * s % width != 0) channels *= 2;
  if (c % channels != 0 || n * c * s > UINT32_MAX) return {};
  while (channels * 2 <= plan.kMostChannels && c % (channels * 2) == 0 &&
         channels * s * kPack / width < plan.kRunBytes) {
    channels *= 2;
  }
  BatchNormRows rows = plan_batch_norm_rows(n, c / channels, channels * s, width);
  const int64_t sample_bytes = rows.row_packs * kPack * inputs;
  const auto bytes = [&](int64_t cluster) { return ceil_div(n, cluster) * sample_bytes; };
  int cluster = BatchNormHeld::kMostBlocks;
  const auto has_more = [&] {  // blocks than it needs
    const int64_t half = ceil_div(n, cluster / 2) * rows.row_packs;
    return n < cluster || half <= kBatchNormThreads ||
           (rows.c * cluster > plan.kBusyBlocks &&
            bytes(cluster / 2) <= BatchNormHeld::kBytesOfFour);
  };
  while (cluster > 1 && has_more()) cluster /= 2;
  if (bytes(cluster) > std::min(plan.kMostBytes, shared_limit - kForParts)) return {};
  rows.set_step(kBatchNormThreads, width);
  plan.channels = static_cast<int>(channels);
  plan.plane = static_cast<int>(s);
  plan.samples = static_cast<int>(ceil_div(n, cluster));
  plan.lanes = lanes_of_elements(plan.samples, s, kBatchNormThreads / channels);
  const auto piece = static_cast<int>(plan.samples * rows.row_packs);
  plan.held = {.cluster = cluster,
               .packs = static_cast<int>(rows.packs),
               .piece = piece,
               .in_shared = piece,
               .bytes = static_cast<int>(piece * kPack * inputs),
               .channel = static_cast<uint32_t>(rows.channel),
               .row = static_cast<uint32_t>(rows.row),
               .row_packs = static_cast<uint32_t>(rows.row_packs),
               .step_packs = static_cast<uint32_t>(rows.step_packs),
               .step = static_cast<uint32_t>(rows.step),
               .wrap = static_cast<uint32_t>(rows.wrap)};
  return plan;
}

// Blocks of batch_norm_held that a multiprocessor should have room for.
constexpr int batch_norm_held_blocks(int threads, int kept, int inputs) {
  if (threads == BatchNormHeld::kWideThreads) return 1;
  return kept > 0 || inputs == 1 ? 4 : 3;
}

// Where a thread is among its channel's packs. A step goes over a pack of each of the block's
// threads.
template <class Index>
struct BatchNormPosition {
  Index at;      // of the pack's first element
  Index in_row;  // packs before it in its row

  template <class Plan>
  GRADUS_HD void step(const Plan& plan) {
    in_row += plan.step_packs;
    at += plan.step;
    if (in_row >= plan.row_packs) {
      in_row -= plan.row_packs;
      at += plan.wrap;
    }
  }
};

struct BatchNormWalk : BatchNormPosition<int64_t> {
  GRADUS_HD BatchNormWalk(const BatchNormRows& plan, int64_t c, int64_t pack, int width) {
    const int64_t row = plan.packs < (int64_t(1) << 30)
                            ? plan.by_row_packs.quotient(static_cast<uint32_t>(pack))
                            : pack / plan.row_packs;
    in_row = pack - row * plan.row_packs;
    at = c * plan.channel + row * plan.row + in_row * width;
  }
};

// The same in 32 bits, which takes a third of the instructions. Past a channel's last pack `at` has
// no meaning.
struct BatchNormHeldWalk : BatchNormPosition<uint32_t> {
  GRADUS_HD BatchNormHeldWalk(const BatchNormHeld& plan, uint32_t c, uint32_t pack, int width) {
    const uint32_t row = pack / plan.row_packs;
    in_row = pack - row * plan.row_packs;
    at = c * plan.channel + row * plan.row + in_row * static_cast<uint32_t>(width);
  }
};

// A thread's elements of its channel among those that its block holds: every `lanes`-th one of
// every `slots`-th sample's plane.
struct BatchNormBandWalk {
  int at;    // in the block's shared memory
  int left;  // elements from this one on
  int in_plane, first, plane, lanes, wrap;

  GRADUS_HD BatchNormBandWalk(const BatchNormBands& plan, int channel, int thread, int samples)
      : first(thread % plan.lanes), plane(plan.plane), lanes(plan.lanes) {
    const int run = static_cast<int>(plan.held.channel), slot = thread / lanes;
    const int slots = kBatchNormThreads / plan.channels / lanes;
    const int of_plane = (plane - first + lanes - 1) / lanes;
    left = slot < samples && first < plane ? (samples - slot + slots - 1) / slots * of_plane : 0;
    at = slot * run + channel * plane + first;
    in_plane = first;
    wrap = slots * run - of_plane * lanes;
  }
  GRADUS_HD void step() {
    --left;
    at += lanes;
    in_plane += lanes;
    if (in_plane < plane) return;
    in_plane = first;
    at += wrap;
  }
};

// The most threads across the channels.
inline constexpr int kColumnLanes = 32;

// Channels-last tensors: m rows of c channels. A block has `lanes` threads across the channels,
// each `width` channels wide, and kBatchNormThreads / lanes across the rows. Blocks that sum take
// every `chunks`-th group of rows, so that all of them sweep memory together; blocks that write
// take one group.
struct BatchNormColumns {
  int64_t m = 0, c = 0;
  int lanes = 1;               // a power of two, at most kColumnLanes
  int rows = 0;                // kBatchNormThreads / lanes
  int64_t channel_blocks = 0;  // blocks across the channels
  int64_t group = 0;           // rows that a block loads together
  int64_t groups = 0;
  int64_t chunks = 0;  // blocks that sum, across the rows
};

// Packs of all inputs that a thread loads together: to sum, of half the bytes, so that what it
// keeps for its channels leaves registers for them; to write.
inline constexpr int kColumnSums = 8, kColumnWrites = 4;
// Blocks that sum, on a multiprocessor.
inline constexpr int kColumnBlocks = 4;
// The threads of a block that adds chunks up, and those of them across the channels.
inline constexpr int kFinishThreads = 1024, kFinishLanes = 8;
constexpr int batch_norm_sum_width(int width) { return width == 1 ? 1 : width / 2; }

// together: rows that a thread loads together.
inline BatchNormColumns plan_batch_norm_columns(int64_t m, int64_t c, int width, int together) {
  // On an H100 all are at work at once; fewer where each would have little to do, since chunks take
  // time to be added up.
  constexpr int64_t kBlocks = 132 * kColumnBlocks;
  BatchNormColumns plan{.m = m, .c = c};
  const int64_t vectors = ceil_div(c, width);
  while (plan.lanes < kColumnLanes && plan.lanes < vectors) plan.lanes *= 2;
  plan.rows = kBatchNormThreads / plan.lanes;
  plan.channel_blocks = std::max<int64_t>(1, ceil_div(vectors, plan.lanes));
  plan.group = int64_t{plan.rows} * together;
  plan.groups = ceil_div(m, plan.group);
  plan.chunks =
      std::clamp<int64_t>(plan.groups / 4, 1, std::max<int64_t>(1, kBlocks / plan.channel_blocks));
  return plan;
}

// Whether results should be the first to leave L2: of a tensor that does not fit there beside its
// input, which the second pass still reads.
inline bool batch_norm_streams(int64_t bytes) { return bytes > int64_t(20) << 20; }

}  // namespace gradus
