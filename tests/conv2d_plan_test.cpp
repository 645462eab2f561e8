#include "cuda/conv2d_plan.h"

#include <gtest/gtest.h>

#include "tests/support/conv_problem.h"

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

TEST(ConvPlan, PathsOfSmallNetworks) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const auto path = [&](Kind kind, int64_t c, int64_t k, const Window& window = kSame) {
      return plan_conv_path(problem_of(kind, dtype, 128, c, k, 28, window));
    };
    EXPECT_EQ(path(Kind::forward, 1, 32), ConvPath::first);
    EXPECT_EQ(path(Kind::input, 1, 32), ConvPath::first);
    EXPECT_EQ(path(Kind::input, 3, 64, {.kernel = 5, .padding = 2}), ConvPath::halo);
    EXPECT_EQ(path(Kind::weight, 3, 64), ConvPath::first);
    EXPECT_EQ(path(Kind::weight, 3, 64, {.kernel = 7, .padding = 3}), ConvPath::direct);
    for (const Kind kind : kKinds) {
      EXPECT_EQ(path(kind, 32, 32), ConvPath::halo);
      EXPECT_EQ(path(kind, 64, 64), ConvPath::halo);
      EXPECT_EQ(path(kind, 32, 32, {.kernel = 3, .stride = 2, .padding = 1}), ConvPath::halo);
      EXPECT_EQ(path(kind, 32, 32, {.kernel = 3, .stride = 3}), ConvPath::gemm);
      const bool rounds_first = kind == Kind::forward && is_half(dtype);  // and adds the bias then
      EXPECT_EQ(path(kind, 64, 64, {.kernel = 1}),
                rounds_first ? ConvPath::gemm : ConvPath::product);
      EXPECT_EQ(path(kind, 128, 128), ConvPath::gemm);
      EXPECT_EQ(path(kind, 2, 6), kind == Kind::input ? ConvPath::gemm : ConvPath::direct);
      ConvProblem strict = problem_of(kind, DType::f32, 128, 32, 32, 28, kSame);
      strict.math = ConvMath::f32;
      EXPECT_EQ(plan_conv_path(strict), ConvPath::halo);
      strict.c = 16, strict.k = 16;  // padded to 32, three products of each
      EXPECT_EQ(plan_conv_path(strict), ConvPath::gemm);
      strict.c = 3, strict.k = 32;
      EXPECT_EQ(plan_conv_path(strict), ConvPath::first);
      ConvProblem nchw = problem_of(kind, dtype, 128, 32, 32, 28, kSame);
      nchw.ready = false;
      EXPECT_EQ(plan_conv_path(nchw), ConvPath::gemm);
      EXPECT_EQ(plan_conv_path(problem_of(kind, dtype, 4, 1, 1, 28, kSame, 64)),
                ConvPath::depthwise);
      EXPECT_EQ(plan_conv_path(problem_of(kind, dtype, 4, 1, 1, 28, kSame, 63)), ConvPath::direct);
    }
  }
}

// NCHW goes the way of channels-last behind copies, unless its path copies itself or needs none.
TEST(ConvPlan, OtherLayoutsAreCopiedWhereThatPays) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const Kind kind : kKinds) {
      const auto plan = [&](int64_t c, int64_t k, const Window& window, bool wgmma = false) {
        ConvProblem problem = problem_of(kind, dtype, 128, c, k, 28, window);
        problem.ready = false, problem.wgmma = wgmma;
        return plan_conv(problem);
      };
      const ConvWay halo{.path = ConvPath::halo, .copied = true};
      EXPECT_EQ(plan(32, 32, kSame), halo);
      EXPECT_EQ(plan(32, 32, {.kernel = 3, .stride = 2, .padding = 1}), halo);
      const bool rounds_first = kind == Kind::forward && is_half(dtype);
      EXPECT_EQ(plan(64, 64, {.kernel = 1}),
                rounds_first ? ConvWay{} : (ConvWay{.path = ConvPath::product, .copied = true}));
      EXPECT_EQ(plan(128, 128, kSame), ConvWay{});
      EXPECT_EQ(plan(128, 128, kSame, true), ConvWay{ConvPath::wgmma});
      EXPECT_EQ(plan(30, 30, {.kernel = 3, .stride = 3}), ConvWay{});
      if (kind != Kind::input) {
        EXPECT_EQ(plan(3, 64, kSame), ConvWay{ConvPath::direct});
      }
    }
  }
}

// The gradient of the bias comes with that of the weights where dy is what is mostly moved.
TEST(ConvPlan, BiasIsFoldedWhereDyIsLoadedForIt) {
  for (const ConvPath path : {ConvPath::depthwise, ConvPath::first, ConvPath::halo}) {
    EXPECT_TRUE(conv_folds_bias(path, DType::f32));
  }
  for (const ConvPath path :
       {ConvPath::direct, ConvPath::wgmma, ConvPath::product, ConvPath::gemm}) {
    EXPECT_FALSE(conv_folds_bias(path, DType::bf16));
  }
  EXPECT_TRUE(conv_folds_bias(ConvPath::shift, DType::bf16));
  EXPECT_FALSE(conv_folds_bias(ConvPath::shift, DType::f32));  // rounded to TF32
}

TEST(ConvPlan, ATileThatIsGivenIsTaken) {
  const auto plan = plan_conv_wgrad(ConvMath::tensor, 100352, 32, 288, 1, {64, 96}, 2);
  EXPECT_EQ(plan.tile, (ConvTile{64, 96}));
  EXPECT_GT(plan.chunks.count, plan_conv_wgrad(ConvMath::tensor, 100352, 32, 288, 1).chunks.count);
  const auto wgmma = plan_wgmma_wgrad(DType::bf16, ConvMath::tensor, 65536, 128, 1152, {128, 128});
  EXPECT_EQ(wgmma.tile, (WgmmaTile{128, 128}));
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

// Few outputs have many threads each; as few as take all slices at once where those are enough to
// leave each multiprocessor one block.
TEST(ConvPlan, SecondStageHasThreadsForEachOutput) {
  EXPECT_EQ(plan_conv_reduce_columns(9 * 32, 256, true), 8);
  EXPECT_EQ(plan_conv_reduce_columns(8 * kHaloProcessors, 256, true), 8);
  EXPECT_EQ(plan_conv_reduce_columns(27 * 64, 256, true), 16);
  EXPECT_EQ(plan_conv_reduce_columns(27 * 64, 272, true), 16);
  EXPECT_EQ(plan_conv_reduce_columns(27 * 64, 256, false), 8);
  EXPECT_EQ(plan_conv_reduce_columns(9 * 128, 1000, true), 8);
  EXPECT_EQ(plan_conv_reduce_columns(9 * 32 * 32, 132, true), 32);
}

// What a first layer's kernels ask for fits, its rows of y are equal parts, and what does not fit
// goes elsewhere.
TEST(ConvPlan, FirstTilesFitSharedMemory) {
  int first = 0, elsewhere = 0;
  for (const auto& [dtype, math] :
       {std::pair(DType::f32, ConvMath::f32), std::pair(DType::f32, ConvMath::tensor),
        std::pair(DType::bf16, ConvMath::tensor)}) {
    for (const Kind kind : {Kind::forward, Kind::weight}) {
      for (const int64_t c : {1, 3, 4}) {
        for (const int64_t k : {8, 32, 64, 200}) {
          for (const int64_t side : {5, 28, 224, 1000, 20000}) {
            ConvProblem problem = problem_of(kind, dtype, 4, c, k, side, kSame);
            problem.math = math;
            if (!conv_is_first(problem)) {
              ++elsewhere;
              EXPECT_EQ(plan_conv_path(problem), ConvPath::direct);
              continue;
            }
            ++first;
            const HaloTile tile = plan_conv_first(problem);
            EXPECT_LE(conv_first_shared(problem), kMostShared);
            EXPECT_EQ(tile.columns, problem.q);
            EXPECT_LE(tile.rows, problem.p);
            EXPECT_LT(ceil_div(problem.p, tile.rows) * tile.rows - problem.p,
                      ceil_div(problem.p, tile.rows));
          }
        }
      }
    }
  }
  EXPECT_GT(first, 150);
  EXPECT_GT(elsewhere, 10);
}

// Of one channel a tile is a block: all run at once, and none is very large or very small.
TEST(ConvPlan, FirstTilesOfOneChannelRunAtOnce) {
  const auto rows = [](int64_t n, int64_t side) {
    const ConvProblem problem = problem_of(Kind::forward, DType::bf16, n, 1, 32, side, kSame);
    EXPECT_TRUE(conv_first_is_single(problem));
    return plan_conv_first(problem).rows;
  };
  EXPECT_EQ(rows(512, 28), 28);
  EXPECT_EQ(rows(5000, 28), 28);
  EXPECT_EQ(rows(128, 28), 7);
  EXPECT_EQ(rows(1, 28), 5);
  EXPECT_EQ(rows(64, 224), 4);
  EXPECT_EQ(rows(1, 224), 1);
  const auto single = [](Kind kind, int64_t c, const Window& window) {
    return conv_first_is_single(problem_of(kind, DType::bf16, 4, c, 32, 28, window));
  };
  EXPECT_FALSE(single(Kind::forward, 3, kSame));
  EXPECT_FALSE(single(Kind::forward, 1, {.kernel = 5}));
  EXPECT_FALSE(single(Kind::weight, 1, kSame));
}

// Segments of dx on tensor cores cover its rows once; two tiles of dy and of z fit shared memory.
TEST(ConvPlan, FirstInputSegmentsCoverAndFit) {
  for (const auto& [dtype, math] :
       {std::pair{DType::f32, ConvMath::f32}, std::pair{DType::f32, ConvMath::tensor},
        std::pair{DType::bf16, ConvMath::tensor}}) {
    for (const int64_t n : {1, 3, 100, 256, 5000}) {
      for (const int64_t side : {3, 7, 28, 32, 113}) {
        for (const int64_t padding : {0, 1, 2}) {
          SCOPED_TRACE(concat(dtype, " n ", n, " side ", side, " padding ", padding));
          const Window window{.kernel = 3, .padding = padding};
          const ConvProblem problem =
              problem_of(Kind::input, dtype, n, 3, 64, side, window, 1, math);
          const FirstInputPlan plan = plan_first_input(problem);
          EXPECT_GE(plan.rows, 2);  // z of the rows before is there
          EXPECT_GE(plan.segments * plan.segment_rows, side);
          EXPECT_LT((plan.segments - 1) * plan.segment_rows, side);
          EXPECT_LE(plan.segments, std::max<int64_t>(1, 2 * kHaloProcessors / n));
          EXPECT_EQ(plan.z_bytes % 16, 0);
          EXPECT_TRUE(plan.shared == 0 || conv_is_first(problem));
          EXPECT_LE(plan.shared, kMostShared);
          if (side <= 32) {
            EXPECT_LE(plan.shared, problem.shared_of_two());
          }
        }
      }
    }
  }
}

// What was fastest on an H100 (bench/log_conv2d_small.md).
TEST(ConvPlan, FirstInputTilesOf16KAndTwoSegmentsOfOneChannelInF32) {
  const auto plan = [](DType dtype, ConvMath math, int64_t n, int64_t c, int64_t k, int64_t side) {
    return plan_first_input(problem_of(Kind::input, dtype, n, c, k, side, kSame, 1, math));
  };
  for (const ConvMath math : {ConvMath::tensor, ConvMath::f32}) {
    EXPECT_EQ(plan(DType::f32, math, 256, 3, 64, 32).rows, 2);
    EXPECT_EQ(plan(DType::f32, math, 256, 3, 64, 32).segments, 1);
    EXPECT_EQ(plan(DType::f32, math, 512, 1, 32, 28).rows, 4);
    EXPECT_EQ(plan(DType::f32, math, 512, 1, 32, 28).segments, 2);
    EXPECT_EQ(plan(DType::f32, math, 128, 1, 32, 28).segments, 2);
  }
  const auto half = ConvMath::tensor;
  EXPECT_EQ(plan(DType::bf16, half, 256, 3, 64, 32).rows, 4);
  EXPECT_EQ(plan(DType::bf16, half, 512, 1, 32, 28).rows, 4);
  EXPECT_EQ(plan(DType::bf16, half, 512, 1, 32, 28).segments, 1);
  EXPECT_EQ(plan(DType::bf16, half, 128, 1, 32, 28).segments, 2);
}

// The depthwise kernels' blocks cover the outputs once; those of the weight gradient run at a time.
TEST(ConvPlan, DepthwiseBlocksCoverTheOutputs) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t n : {1, 3, 256, 300}) {
      for (const int64_t side : {3, 7, 28, 33, 113}) {
        for (const int64_t channels : {8, 72, 128, 960}) {
          for (const Kind kind : kKinds) {
            SCOPED_TRACE(concat(dtype, " n ", n, " side ", side, " channels ", channels));
            const ConvProblem problem = problem_of(kind, dtype, n, 1, 1, side, kSame, channels);
            const ConvDepthwisePlan plan = plan_conv_depthwise(problem);
            EXPECT_LE(plan.strips, 8);
            EXPECT_EQ(plan.strip, kind == Kind::weight ? 4 : 2);
            EXPECT_GE(plan.column_tiles * plan.strips * plan.strip, side);
            EXPECT_LT((plan.column_tiles - 1) * plan.strips * plan.strip, side);
            EXPECT_GE(plan.channel_tiles * 128, channels * size_of(dtype));
            if (kind != Kind::weight) {
              EXPECT_EQ(plan.rows.count, n * plan.row_tiles);
              EXPECT_LE(plan.rows.size, 16);
              EXPECT_GE(plan.row_tiles * plan.rows.size, side);
              EXPECT_LT((plan.row_tiles - 1) * plan.rows.size, side);
              continue;
            }
            EXPECT_GE(plan.rows.count * plan.rows.size, n * side);
            EXPECT_LT((plan.rows.count - 1) * plan.rows.size, n * side);
            const int64_t tiles = plan.column_tiles * plan.channel_tiles;
            EXPECT_LE(plan.blocks() * plan.strips, std::max(8 * tiles, 32 * kHaloProcessors));
          }
        }
      }
    }
  }
  const auto blocks = [](Kind kind) {
    return plan_conv_depthwise(problem_of(kind, DType::bf16, 256, 1, 1, 32, kSame, 128)).blocks();
  };
  EXPECT_EQ(blocks(Kind::forward), 4096);
  EXPECT_EQ(blocks(Kind::weight), 512);
}

// On Hopper the blocks that walk down rows cover the outputs once, and three quarters of what they
// work on exist.
TEST(ConvPlan, DepthwiseRowsCoverTheOutputs) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t n : {1, 3, 256}) {
      for (const int64_t side : {1, 7, 14, 28, 33, 56, 113}) {
        for (const int64_t channels : {8, 32, 72, 128, 960}) {
          for (const Kind kind : {Kind::forward, Kind::input}) {
            SCOPED_TRACE(concat(dtype, " n ", n, " side ", side, " channels ", channels));
            const ConvProblem problem = problem_of(kind, dtype, n, 1, 1, side, kSame, channels);
            EXPECT_EQ(plan_conv_depthwise_rows(problem).rows, 0);
            const ConvDepthwiseRowsPlan plan = plan_conv_depthwise_rows(on_hopper(problem));
            const int64_t bytes = channels * size_of(dtype);
            const double exist =
                static_cast<double>(side * bytes) /
                static_cast<double>(ceil_div(side, 16) * 16 * ceil_div(bytes, 128) * 128);
            if (exist < 0.75) {
              EXPECT_EQ(plan.rows, 0);
            }
            if (plan.rows == 0) continue;
            EXPECT_GE(plan.column_tiles * plan.columns, side);
            EXPECT_LT((plan.column_tiles - 1) * plan.columns, side);
            EXPECT_GE(plan.channel_tiles * 128, bytes);
            EXPECT_GE(plan.row_tiles * plan.rows, side);
            EXPECT_LT((plan.row_tiles - 1) * plan.rows, side);
            EXPECT_LE(plan.rows, 8);
          }
        }
      }
    }
  }
  const auto plan = [](DType dtype, int64_t n, Pair map, int64_t channels, const Window& window) {
    return plan_conv_depthwise_rows(
        on_hopper(problem_of(Kind::forward, dtype, n, 1, 1, map, window, channels)));
  };
  EXPECT_EQ(plan(DType::bf16, 1, {0, 12}, 64, {.padding = 2}).rows, 0);  // nothing to copy
  EXPECT_EQ(plan(DType::bf16, 256, 32, 128, kSame).blocks(), 8);
  EXPECT_EQ(plan(DType::f32, 256, 32, 128, kSame).blocks(), 16);
  EXPECT_EQ(plan(DType::bf16, 256, 28, 128, kSame).rows, 7);
  EXPECT_EQ(plan(DType::bf16, 256, {32, 14}, 128, kSame).columns, 16);
  EXPECT_EQ(plan(DType::bf16, 256, 32, 40, kSame).rows, 0);
  EXPECT_EQ(plan(DType::bf16, 256, 32, 128, {.kernel = 3, .stride = 2, .padding = 1}).rows, 0);
}

}  // namespace
}  // namespace gradus
