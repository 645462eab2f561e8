// How local response normalization is spread over a GPU: host code, tested without one.
#pragma once

#include "cuda/device/strided_plan.h"
#include "cuda/plan.h"

namespace gradus {

// Contiguous tensors: a block takes kLanes groups of `width` neighbouring pixels (packs), counted
// through all samples, of `groups` groups of channels. Blocks are numbered with the channels
// fastest: neighbours read each other's border channels while those are in L2.
struct ResponseTiles {
  static constexpr int kLanes = 32;
  static constexpr int kThreads = 256;

  int64_t packs;              // of all samples
  FastDivisor packs_per_row;  // of one channel of one sample
  int groups;                 // at most kThreads / kLanes
  FastDivisor channel_tiles;
  int64_t blocks;
};

// `channels` in a group, at most `threads` in a block; c and s are below 2^31.
inline ResponseTiles plan_response_tiles(int64_t n, int64_t c, int64_t s, int width, int channels,
                                         int threads = ResponseTiles::kThreads) {
  const int64_t most = threads / ResponseTiles::kLanes;
  const int64_t packs_per_row = s / width, groups = std::max<int64_t>(1, ceil_div(c, channels));
  const int64_t channel_tiles = ceil_div(groups, most);
  ResponseTiles plan{};
  plan.packs = n * packs_per_row;
  plan.packs_per_row = FastDivisor(static_cast<uint32_t>(packs_per_row));
  plan.groups = static_cast<int>(ceil_div(groups, channel_tiles));  // evenly
  plan.channel_tiles = FastDivisor(static_cast<uint32_t>(channel_tiles));
  plan.blocks = channel_tiles * ceil_div(plan.packs, ResponseTiles::kLanes);
  return plan;
}

// Sizes that have no kernel of their own go backwards through a scratch tensor of t, for as many
// samples at a time as this many bytes hold.
inline constexpr int64_t kResponseScratch = int64_t(256) << 20;

inline int64_t response_samples_at_once(int64_t sample_bytes) {
  return std::max<int64_t>(1, kResponseScratch / std::max<int64_t>(sample_bytes, 1));
}

}  // namespace gradus
