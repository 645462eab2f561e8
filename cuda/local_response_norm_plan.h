// How local response normalization is spread over a GPU: host code, tested without one.
#pragma once

#include "cuda/plan.h"

namespace gradus {

// Contiguous tensors: a block takes kLanes groups of `width` neighbouring pixels (packs), counted
// through all samples, of `groups` groups of channels. Blocks are numbered with the channels
// fastest: neighbours read each other's border channels while those are in L2.
struct ResponseTiles {
  static constexpr int kLanes = 32;
  static constexpr int kThreads = 256;

  int64_t packs;          // of all samples
  int64_t packs_per_row;  // of one channel of one sample
  int groups;             // at most kThreads / kLanes
  int64_t channel_tiles;
  int64_t blocks;
};

// `channels` in a group.
inline ResponseTiles plan_response_tiles(int64_t n, int64_t c, int64_t s, int width, int channels) {
  constexpr int64_t kMost = ResponseTiles::kThreads / ResponseTiles::kLanes;
  ResponseTiles plan{};
  plan.packs_per_row = s / width;
  plan.packs = n * plan.packs_per_row;
  const int64_t groups = std::max<int64_t>(1, ceil_div(c, channels));
  plan.channel_tiles = ceil_div(groups, kMost);
  plan.groups = static_cast<int>(ceil_div(groups, plan.channel_tiles));  // evenly
  plan.blocks = plan.channel_tiles * ceil_div(plan.packs, ResponseTiles::kLanes);
  return plan;
}

// Contiguous 16-bit tensors, backward: a thread holds `width` neighbouring pixels and walks a run
// of channels, with the window in registers. A run reads the neighbouring channels of its ends
// again, so there are no more runs than it takes to fill a card several times over, and to keep
// them short: long ones drift apart, and so do the rows of memory that they touch.
struct ResponseRuns {
  static constexpr int kThreads = 128;
  static constexpr int64_t kTargetThreads = 400000;
  static constexpr int64_t kShortest = 16, kLongest = 21;

  int64_t packs;          // groups of `width` pixels, of all samples
  int64_t packs_per_row;  // of one channel of one sample
  int64_t runs;           // per pack
  int run;                // channels of a run; the last one may be shorter
  int64_t blocks;
};

inline ResponseRuns plan_response_runs(int64_t n, int64_t c, int64_t s, int width) {
  ResponseRuns plan{};
  plan.packs_per_row = s / width;
  plan.packs = n * plan.packs_per_row;
  const int64_t wanted = ceil_div(ResponseRuns::kTargetThreads, std::max<int64_t>(plan.packs, 1));
  const int64_t most = std::max<int64_t>(1, c / ResponseRuns::kShortest);
  plan.run = static_cast<int>(std::clamp<int64_t>(ceil_div(c, std::clamp<int64_t>(wanted, 1, most)),
                                                  1, ResponseRuns::kLongest));
  plan.runs = ceil_div(c, plan.run);
  plan.blocks = plan.runs * ceil_div(plan.packs, ResponseRuns::kThreads);
  return plan;
}

// Sizes that have no kernel of their own go backwards through a scratch tensor of t, for as many
// samples at a time as this many bytes hold.
inline constexpr int64_t kResponseScratch = int64_t(256) << 20;

inline int64_t response_samples_at_once(int64_t sample_bytes) {
  return std::max<int64_t>(1, kResponseScratch / std::max<int64_t>(sample_bytes, 1));
}

}  // namespace gradus
