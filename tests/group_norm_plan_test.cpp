// Launch plans of group normalization: host code, tested without a GPU.
#include "cuda/group_norm_plan.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace gradus {
namespace {

struct Case {
  int64_t n, c, s, g;
  int width;
  int64_t element;
};

const Case kCases[] = {
    {256, 128, 3136, 32, 4, 4},  {256, 128, 3136, 32, 8, 2}, {256, 128, 3136, 128, 4, 4},
    {256, 128, 3136, 128, 8, 2}, {128, 64, 1024, 32, 4, 4},  {128, 64, 1024, 64, 8, 2},
    {37, 8, 1, 4, 1, 4},         {5, 262, 1, 2, 1, 2},       {2, 12, 64, 4, 4, 4},
    {2, 1024, 4, 2, 4, 4},       {3, 24, 49, 3, 1, 2},       {2, 6, 3363, 2, 1, 4},
    {1, 24, 9216, 2, 2, 8},      {1, 6, 82944, 2, 4, 4},     {1, 1, 262656, 1, 8, 2},
    {1, 70000, 2, 1, 1, 4},      {1, 70000, 2, 70000, 1, 4}, {1, 1, 1 << 24, 1, 4, 4},
    {2, 28, 5000, 4, 4, 4},      {1, 3, 1, 3, 1, 2},         {1, 128, 16128 * 1200, 32, 8, 2},
};

GroupNormGeometry geometry_of(const Case& k) {
  return {.n = k.n, .c = k.c, .s = k.s, .g = k.g, .channels_last = false};
}

TEST(GroupNormPlan, RegionsCoverEachSetOnce) {
  for (const Case& k : kCases) {
    for (const int tensors : {1, 2}) {
      const GroupNormSlab plan =
          plan_group_norm_slab(geometry_of(k), k.width, k.element, tensors, true);
      SCOPED_TRACE(testing::Message() << k.c << "x" << k.s << "/" << k.g << " x" << tensors);
      int64_t packs = 0;
      for (int piece = 0; piece < plan.pieces; ++piece) {
        const int first_row =
            plan.segments > 1 ? piece / plan.segments : piece * plan.rows_per_piece;
        const int64_t rows = std::min<int64_t>(plan.rows_per_piece, plan.rows - first_row);
        const bool last = plan.segments > 1 && piece % plan.segments == plan.segments - 1;
        EXPECT_GT(rows, 0);
        EXPECT_GT(plan.last_cols, 0);
        packs += rows * (last ? plan.last_cols : plan.cols);
        EXPECT_TRUE(plan.segments == 1 || plan.rows_per_piece == 1);
      }
      EXPECT_EQ(packs * plan.width, plan.m);
    }
  }
}

TEST(GroupNormPlan, ThreadsCoverEachRegionOnce) {
  for (const Case& k : kCases) {
    for (const int tensors : {1, 2}) {
      const GroupNormSlab plan =
          plan_group_norm_slab(geometry_of(k), k.width, k.element, tensors, true);
      SCOPED_TRACE(testing::Message() << k.c << "x" << k.s << "/" << k.g << " x" << tensors);
      std::set<int64_t> seen;
      for (int thread = 0; thread < plan.lanes_per_set; ++thread) {
        const int slot = thread / plan.lanes_per_row, lane = thread % plan.lanes_per_row;
        for (int row = slot; row < plan.rows_per_piece; row += plan.slots) {
          for (int col = lane; col < plan.cols; col += plan.lanes_per_row)
            EXPECT_TRUE(seen.insert(int64_t{row} * plan.cols + col).second);
        }
      }
      EXPECT_EQ(static_cast<int64_t>(seen.size()), plan.region_packs());
      EXPECT_EQ(plan.slots * plan.lanes_per_row, plan.lanes_per_set);
      EXPECT_EQ(plan.threads % 32, 0);
      EXPECT_LE(plan.threads, 512);
      if (plan.lanes_per_row > 32) {  // whole warps per row, one row each
        EXPECT_EQ(plan.lanes_per_row % 32, 0);
        EXPECT_GE(plan.slots, plan.rows_per_piece);
      }
      if (!plan.by_block) {
        EXPECT_EQ(plan.pieces, 1);
        EXPECT_EQ(plan.sets_per_block * plan.lanes_per_set, plan.threads);
        EXPECT_LE(plan.lanes_per_set, 32);
      }
    }
  }
}

TEST(GroupNormPlan, BlocksFitTheCard) {
  for (const Case& k : kCases) {
    for (const bool clusters : {true, false}) {
      for (const int tensors : {1, 2}) {
        const GroupNormSlab plan =
            plan_group_norm_slab(geometry_of(k), k.width, k.element, tensors, clusters);
        // Beside 1 KB of the system's and the slots of the reductions, within 100 KB per
        // multiprocessor, the least of any card in use.
        EXPECT_LE(tensors * plan.tensor_bytes, 98 * 1024);
        EXPECT_EQ(plan.tensor_bytes % 16, 0);
        EXPECT_GE(plan.tensor_bytes, plan.region_packs() * plan.width * k.element);
        EXPECT_TRUE(!plan.on_chip || plan.pieces <= (clusters ? 8 : 1));
        EXPECT_LE(plan.blocks(), kMaxGridX);
        EXPECT_GE(plan.blocks() * plan.sets_per_block, plan.sets * plan.pieces);
      }
    }
  }
}

TEST(GroupNormPlan, TheShapesOfATrainingRun) {
  const auto plan = [](const Case& k, int tensors) {
    return plan_group_norm_slab(geometry_of(k), k.width, k.element, tensors, true);
  };
  // Slabs of 49 KB: a block each, four per multiprocessor, two with dy.
  EXPECT_EQ(plan(kCases[0], 1).threads, 256);
  EXPECT_EQ(plan(kCases[0], 1).lanes_per_row, 64);
  EXPECT_EQ(plan(kCases[0], 2).threads, 512);
  EXPECT_EQ(plan(kCases[0], 2).tensor_bytes, 49 * 1024);
  EXPECT_EQ(plan(kCases[0], 2).pieces, 1);
  EXPECT_EQ(plan(kCases[1], 1).threads, 128);
  EXPECT_TRUE(plan(kCases[2], 1).by_block);   // instance norm, 12.25 KB
  EXPECT_FALSE(plan(kCases[3], 1).by_block);  // a warp per channel
  EXPECT_FALSE(plan(kCases[4], 1).by_block);
  EXPECT_EQ(plan(kCases[4], 1).threads, 64);   // two sets of 8 KB
  EXPECT_EQ(plan(kCases[5], 1).threads, 128);  // four of 2 KB
  // Rows of up to 1024 elements fit the registers of a warp, in the forward pass.
  EXPECT_EQ(plan(kCases[5], 1).row_packs, 4);
  EXPECT_EQ(plan({2, 3, 12 * 16, 3, 8, 2}, 1).row_packs, 1);
  EXPECT_EQ(plan({2, 3, 16 * 24, 3, 8, 2}, 1).row_packs, 2);
  EXPECT_EQ(plan({2, 3, 128, 3, 8, 2}, 1).row_packs, 0);   // half a warp
  EXPECT_EQ(plan({2, 3, 1032, 3, 8, 2}, 1).row_packs, 0);  // too long
  EXPECT_EQ(plan(kCases[5], 2).row_packs, 0);
  EXPECT_EQ(plan({2, 3, 1024, 3, 4, 4}, 1).row_packs, 8);
  EXPECT_EQ(plan({2, 3, 1024, 3, 2, 8}, 1).row_packs, 0);
  // Longer ones of 16 bits fit those of a block.
  EXPECT_TRUE(plan({2, 3, 56 * 56, 3, 8, 2}, 1).is_block_row(2));
  EXPECT_TRUE(plan({2, 3, 4096, 3, 8, 2}, 1).is_block_row(2));
  EXPECT_FALSE(plan({2, 3, 4104, 3, 8, 2}, 1).is_block_row(2));
  EXPECT_FALSE(plan({2, 3, 1024, 3, 8, 2}, 1).is_block_row(2));
  EXPECT_FALSE(plan({2, 3, 56 * 56, 3, 4, 4}, 1).is_block_row(4));
  EXPECT_FALSE(plan({2, 6, 56 * 56, 3, 8, 2}, 1).is_block_row(2));
  // Sets of two to four such rows are a block's, in both passes, unless a lane has one pack only.
  for (const int tensors : {1, 2}) {
    EXPECT_EQ(plan(kCases[4], tensors).row_packs, 8);
    EXPECT_EQ(plan({2, 6, 1024, 3, 8, 2}, tensors).row_packs, 4);
    EXPECT_EQ(plan({2, 12, 600, 3, 8, 2}, tensors).row_packs, 4);
    EXPECT_EQ(plan({2, 12, 256, 3, 8, 2}, tensors).row_packs, 0);
    EXPECT_EQ(plan({2, 15, 1024, 3, 8, 2}, tensors).row_packs, 0);
    EXPECT_EQ(plan({2, 6, 1032, 3, 8, 2}, tensors).row_packs, 0);
    EXPECT_EQ(plan({2, 6, 1024, 3, 2, 8}, tensors).row_packs, 0);
  }
  // Single elements: a thread takes a set of two, or of 49; planes of 49 share a block.
  EXPECT_EQ(plan(kCases[6], 1).lanes_per_set, 1);
  EXPECT_EQ(plan(kCases[6], 1).sets_per_block, 128);
  EXPECT_EQ(plan({256, 2048, 49, 2048, 1, 2}, 1).lanes_per_set, 1);
  EXPECT_EQ(plan({256, 2048, 49, 32, 1, 2}, 2).threads, 96);
  EXPECT_EQ(plan({256, 2048, 49, 32, 1, 2}, 2).lanes_per_row, 4);
  // Beyond a cluster, statistics go through memory.
  EXPECT_TRUE(plan(kCases[18], 2).on_chip);
  EXPECT_GT(plan(kCases[18], 2).pieces, 1);
  EXPECT_FALSE(plan(kCases[12], 1).on_chip);
  EXPECT_FALSE(plan(kCases[17], 1).on_chip);
}

TEST(GroupNormPlan, ColumnsCoverEachSampleOnce) {
  for (const Case& k :
       {Case{256, 128, 3136, 32, 4, 4}, Case{256, 128, 3136, 32, 8, 2}, Case{2, 75, 81, 5, 1, 4},
        Case{1, 6, 1 << 24, 2, 1, 2}, Case{3, 4096, 5, 2, 4, 4}, Case{70000, 8, 4, 2, 4, 4}}) {
    const GroupNormColumns plan = plan_group_norm_columns(geometry_of(k), k.width);
    EXPECT_GE(plan.chunks * plan.rows_per_chunk, k.s);
    EXPECT_LT((plan.chunks - 1) * plan.rows_per_chunk, k.s);
    EXPECT_GE(int64_t{plan.tiles} * plan.lanes * k.width, k.c);
    EXPECT_LT(int64_t{plan.tiles - 1} * plan.lanes * k.width, k.c);
    EXPECT_EQ(GroupNormColumns::kThreads % plan.lanes, 0);
    EXPECT_LE(plan.blocks(), kMaxGridX);
  }
}

TEST(GroupNormPlan, HeldSamplesAreCutIntoTilesAndRows) {
  struct Held {
    Case shape;
    int tensors;
    int tiles, pieces;  // 0: it does not fit
  };
  const Held cases[] = {
      {{128, 64, 1024, 32, 4, 4}, 1, 2, 2},   {{128, 64, 1024, 32, 4, 4}, 2, 2, 4},
      {{128, 64, 1024, 32, 8, 2}, 1, 2, 2},   {{128, 64, 1024, 32, 8, 2}, 2, 2, 2},
      {{256, 128, 3136, 32, 8, 2}, 1, 4, 4},  {{256, 128, 3136, 32, 8, 2}, 2, 4, 8},
      {{256, 128, 3136, 32, 4, 4}, 1, 4, 8},  {{256, 128, 3136, 32, 4, 4}, 2, 4, 8},
      {{256, 128, 3136, 128, 8, 2}, 1, 4, 4}, {{256, 128, 3136, 128, 4, 4}, 1, 4, 8},
      {{256, 128, 3136, 32, 2, 8}, 1, 4, 8},  {{256, 128, 3136, 32, 2, 8}, 2, 0, 1},
      {{256, 128, 3136, 1, 4, 4}, 1, 0, 1},   {{2, 96, 3136, 32, 8, 2}, 1, 2, 8},
      {{7, 8, 4, 2, 4, 4}, 1, 1, 1},          {{7, 24, 5, 3, 4, 4}, 2, 1, 1},
      {{2, 1024, 20, 1, 8, 2}, 1, 1, 2},      {{2, 2048, 20, 1, 8, 2}, 1, 0, 1},
      {{2, 2048, 49, 32, 8, 2}, 2, 32, 1},    {{128, 512, 49, 32, 4, 4}, 1, 4, 1},
      {{256, 2048, 49, 32, 8, 2}, 1, 4, 1},   {{256, 2048, 49, 32, 8, 2}, 2, 8, 1},
      {{2, 16, 1 << 20, 4, 8, 2}, 1, 0, 1},   {{2, 264, 49, 8, 8, 2}, 1, 1, 1},
  };
  constexpr int64_t kLimit = 227 * 1024;
  for (const Held& k : cases) {
    const GroupNormHeld plan = plan_group_norm_held(geometry_of(k.shape), k.shape.width,
                                                    k.shape.element, 4, k.tensors, true, kLimit);
    SCOPED_TRACE(testing::Message() << k.shape.c << "x" << k.shape.s << " x" << k.tensors);
    EXPECT_EQ(plan.fits, k.tiles > 0);
    EXPECT_EQ(plan.pieces, k.pieces);
    if (!plan.fits) continue;
    EXPECT_EQ(plan.tiles, k.tiles);
    EXPECT_EQ(plan.tiles * plan.tile, k.shape.c);
    EXPECT_EQ(plan.tiles * plan.groups, k.shape.g);
    EXPECT_EQ(plan.groups * plan.channels, plan.tile);
    EXPECT_EQ(plan.tile % k.shape.width, 0);
    EXPECT_GE(int64_t{plan.pieces} * plan.rows_per_piece, k.shape.s);
    EXPECT_GE(plan.lanes * k.shape.width, plan.tile);
    EXPECT_GE(plan.columns * std::min(k.shape.width, GroupNormHeld::kChannels), plan.tile);
    EXPECT_LE(plan.columns, GroupNormHeld::kThreads);
    EXPECT_LE(plan.lanes_per_group, 32);
    EXPECT_GE(plan.tensor_bytes, plan.rows_per_piece * plan.tile * k.shape.element);
    EXPECT_EQ(plan.tensor_bytes % 16, 0);
    EXPECT_LE(2 * (plan.shared_bytes + 1024), kLimit + 1024);  // two blocks and the system's part
    // Without clusters, or with little shared memory, only what one block holds.
    const GroupNormHeld alone = plan_group_norm_held(
        geometry_of(k.shape), k.shape.width, k.shape.element, 4, k.tensors, false, 48 << 10);
    EXPECT_EQ(alone.pieces, 1);
    EXPECT_TRUE(!alone.fits || alone.shared_bytes <= 48 << 10);
  }
}

// The forward kernel has a count for each of eight slots and a barrier of its own.
TEST(GroupNormPlan, HeldSamplesLeaveTheKernelItsOwnSharedMemory) {
  constexpr int64_t kLimit = 99 * 1024;
  for (const Case& k :
       {Case{8, 128, 0, 32, 8, 2}, Case{8, 64, 0, 32, 4, 4}, Case{8, 16, 0, 8, 2, 8}}) {
    const int64_t accumulator = k.element == 8 ? 8 : 4, own = 8 * accumulator + 8;
    int64_t longest = 0;
    for (int64_t s = 1; s < 2000; ++s) {
      const GroupNormGeometry g{.n = k.n, .c = k.c, .s = s, .g = k.g};
      const GroupNormHeld plan =
          plan_group_norm_held(g, k.width, k.element, accumulator, 1, false, kLimit);
      if (!plan.fits) continue;
      longest = s;
      EXPECT_LE(plan.shared_bytes + own, kLimit) << k.c << "x" << s;
    }
    EXPECT_GT(longest, 700);
  }
}

TEST(GroupNormPlan, SampleSumsCoverTheRows) {
  for (const int64_t rows : {1, 255, 256, 513, 4097, 131072}) {
    for (const int64_t c : {1, 3, 128, 70000}) {
      const Chunks chunks = plan_group_norm_samples(rows, c);
      EXPECT_GE(chunks.count * chunks.size, rows);
      EXPECT_LT((chunks.count - 1) * chunks.size, rows);
      EXPECT_LE(chunks.count, kMaxGridY);
    }
  }
  EXPECT_EQ(plan_group_norm_samples(256, 128).count, 1);  // one launch
}

}  // namespace
}  // namespace gradus
