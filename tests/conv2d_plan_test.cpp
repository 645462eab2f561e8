#include "cuda/conv2d_plan.h"

#include <gtest/gtest.h>

namespace gradus {
namespace {

TEST(ConvPlan, FirstLayersAndDepthwiseAreDirect) {
  EXPECT_TRUE(conv_is_direct(1, 9));
  EXPECT_TRUE(conv_is_direct(3, 49));
  EXPECT_TRUE(conv_is_direct(4, 40));
  EXPECT_FALSE(conv_is_direct(4, 41));
  EXPECT_FALSE(conv_is_direct(5, 1));
}

// The channels that count are those of the tensor that is read: y's for the gradient of x.
TEST(ConvPlan, PathsFollowTheChannelsRead) {
  ConvProblem problem{.n = 2, .c = 1, .h = 8, .w = 8, .k = 32, .p = 8, .q = 8};
  problem.window = {.kernel = 3, .padding = 1};
  EXPECT_EQ(plan_conv_path(problem), ConvPath::direct);
  problem.kind = ConvProblem::Kind::weight;
  EXPECT_EQ(plan_conv_path(problem), ConvPath::direct);
  problem.kind = ConvProblem::Kind::input;
  EXPECT_EQ(plan_conv_path(problem), ConvPath::gemm);
  problem.groups = 32, problem.k = 1;
  EXPECT_EQ(plan_conv_path(problem), ConvPath::direct);
}

TEST(ConvPlan, GatherTilesFollowTheShape) {
  const auto tile = [](int64_t pixels, int64_t columns, bool divided = false) {
    return plan_conv_gather(ConvMath::tensor, pixels, columns, 1, divided);
  };
  EXPECT_EQ(tile(100352, 32), (ConvTile{128, 32}));
  EXPECT_EQ(tile(25088, 64), (ConvTile{64, 64}));
  EXPECT_EQ(tile(262144, 64), (ConvTile{128, 64}));
  EXPECT_EQ(tile(65536, 128), (ConvTile{128, 128}));
  EXPECT_EQ(tile(65536, 128, true), (ConvTile{64, 64}));
  EXPECT_EQ(plan_conv_gather(ConvMath::f32, 65536, 128, 1, false), (ConvTile{128, 64}));
  EXPECT_EQ(plan_conv_gather(ConvMath::f64, 65536, 128, 1, false), (ConvTile{64, 32}));
}

// Every pixel is in one chunk, no chunk is empty, and small reductions are not cut to pieces.
TEST(ConvPlan, WgradChunksCoverThePixels) {
  for (const int64_t pixels : {1, 255, 256, 257, 25088, 100352, 1 << 30}) {
    for (const int64_t rows : {1, 32, 33, 512}) {
      for (const int64_t depth : {8, 288, 4608}) {
        const ConvWgradPlan plan = plan_conv_wgrad(ConvMath::tensor, pixels, rows, depth, 1);
        EXPECT_GE(plan.chunks.size, 256);
        EXPECT_EQ(plan.chunks.size % 64, 0);
        EXPECT_GE(plan.chunks.count * plan.chunks.size, pixels);
        EXPECT_LT((plan.chunks.count - 1) * plan.chunks.size, pixels);
        EXPECT_EQ(plan.tile.rows, rows <= 32 ? 32 : 64);
      }
    }
  }
  EXPECT_EQ(plan_conv_wgrad(ConvMath::f32, 0, 8, 8, 1).chunks.count, 0);
}

TEST(ConvPlan, WgradFillsTheCardWhereItCan) {
  const ConvWgradPlan plan = plan_conv_wgrad(ConvMath::tensor, 100352, 32, 288, 1);
  const int64_t blocks = plan.chunks.count * 3;
  EXPECT_GE(blocks, 350);
  EXPECT_LE(blocks, 400);
}

TEST(ConvPlan, DirectLanesStayWithinTheChannels) {
  for (const int64_t channels : {1, 3, 4, 12, 32, 64, 100, 1000}) {
    for (const int64_t per_group : {1, 4}) {
      for (const bool channels_last : {false, true}) {
        const ConvDirectPlan plan = plan_conv_direct(channels, per_group, 4, channels_last);
        const int64_t width = int64_t{plan.channel_lanes} * plan.per_thread;
        EXPECT_EQ(plan.per_thread, per_group);
        EXPECT_EQ(plan.channel_lanes * plan.pixel_lanes(), ConvDirectPlan::kThreads);
        EXPECT_GE(plan.channel_tiles * width, channels);
        EXPECT_LT((plan.channel_tiles - 1) * width, channels);
        EXPECT_LT(width, 2 * std::max<int64_t>(channels, 4));
        if (!channels_last) {
          EXPECT_EQ(plan.channel_lanes, 1);
        }
      }
    }
  }
}

TEST(ConvPlan, DirectSumChunksCoverThePixels) {
  for (const int64_t pixels : {0, 1, 127, 128, 129, 100352}) {
    const ConvDirectPlan plan = plan_conv_direct(32, 32, 4, true);
    const Chunks chunks = plan_conv_direct_sum(pixels, plan);
    EXPECT_GE(chunks.count * chunks.size, pixels);
    if (pixels > 0) {
      EXPECT_LT((chunks.count - 1) * chunks.size, pixels);
    }
  }
}

}  // namespace
}  // namespace gradus
