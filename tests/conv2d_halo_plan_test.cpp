// Launch choices of the convolutions over halo tiles.
#include "cuda/conv2d_halo_plan.h"

#include <gtest/gtest.h>

#include "cuda/conv2d_plan.h"
#include "tests/support/conv_problem.h"

namespace gradus {
namespace {

// The static choice is the first of the tiles; all fit, and cost no less from one to the next.
TEST(ConvHaloPlan, TilesComeByTheirCost) {
  for (const Kind kind : {Kind::forward, Kind::input}) {
    for (const int64_t side : {7, 14, 28, 45}) {
      const ConvProblem problem = problem_of(kind, DType::bf16, 64, 32, 48, side, kSame);
      const std::vector<HaloGatherPlan> plans = halo_gather_plans(problem);
      ASSERT_GE(plans.size(), 4u);
      const HaloGatherPlan best = plan_halo_gather(problem);
      EXPECT_EQ(plans[0].cost, best.cost);
      EXPECT_EQ(plans[0].shape.stages, best.shape.stages);
      EXPECT_EQ(plans[0].shape.tile.images, best.shape.tile.images);
      EXPECT_EQ(plans[0].shape.tile.rows, best.shape.tile.rows);
      for (size_t i = 0; i < plans.size(); ++i) {
        EXPECT_GT(plans[i].blocks, 0);
        EXPECT_LE(plans[i].shared, kMostShared);
        EXPECT_LE(plans[i > 0 ? i - 1 : 0].cost, plans[i].cost);
      }
    }
  }
}

// Output i reads input u at tap r exactly where the definition says so, in every phase.
TEST(ConvHaloPlan, AxesMeetTheSameInputsAsTheDefinition) {
  int problems = 0;
  for (int64_t kernel = 1; kernel <= 7; ++kernel) {
    for (int64_t stride = 1; stride <= 2; ++stride) {
      for (int64_t padding = 0; padding <= 4; ++padding) {
        for (int64_t dilation = 1; dilation <= 3; ++dilation) {
          const Window window{kernel, stride, padding, dilation};
          const int64_t side = 23;
          const auto forward = problem_of(Kind::forward, DType::bf16, 1, 16, 16, side, window);
          const auto backward = problem_of(Kind::input, DType::bf16, 1, 16, 16, side, window);
          std::vector<int> wanted(static_cast<size_t>(side * forward.p * kernel), 0), got = wanted;
          const auto at = [&](int64_t i, int64_t u, int64_t r) {
            return static_cast<size_t>((i * side + u) * kernel + r);
          };
          std::vector<int> transposed = wanted;
          for (int64_t i = 0; i < forward.p; ++i) {
            for (int64_t r = 0; r < kernel; ++r) {
              const int64_t u = i * stride - padding + r * dilation;
              if (u >= 0 && u < side) ++wanted[at(i, u, r)];
            }
          }
          const HaloAxis axis = plan_halo_axis(forward, 0, 0);
          for (int64_t i = 0; i < axis.outputs; ++i) {
            for (int t = 0; t < axis.taps; ++t) {
              const int64_t u = i * stride + axis.shift + axis.offset[t];
              if (u >= 0 && u < side) ++got[at(i, u, axis.index[t])];
            }
          }
          EXPECT_EQ(got, wanted);
          int64_t outputs = 0;
          for (int phase = 0; phase < stride; ++phase) {
            const HaloAxis back = plan_halo_axis(backward, 0, phase);
            outputs += back.outputs;
            for (int64_t j = 0; j < back.outputs; ++j) {
              for (int t = 0; t < back.taps; ++t) {
                EXPECT_GE(back.offset[t], 0);
                const int64_t i = j + back.shift + back.offset[t];
                if (i >= 0 && i < forward.p) {
                  ++transposed[at(i, back.first + j * stride, back.index[t])];
                }
              }
            }
          }
          EXPECT_EQ(transposed, wanted);
          EXPECT_EQ(outputs, side);
          ++problems;
        }
      }
    }
  }
  EXPECT_EQ(problems, 210);
}

void expect_covers_and_fits(const HaloGatherPlan& plan, int64_t n, int64_t columns) {
  const HaloGather& p = plan.shape;
  ASSERT_GT(plan.blocks, 0);
  EXPECT_LE(plan.blocks, p.tiles);
  EXPECT_LE(plan.shared, kMostShared);
  const int64_t row_tiles = p.row_tiles.divisor, column_tiles = p.column_tiles.divisor;
  EXPECT_GE(row_tiles * p.tile.rows, p.h[0].outputs);
  EXPECT_GE(column_tiles * p.tile.columns, p.w[0].outputs);
  EXPECT_GE(int64_t{p.tiles} * p.tile.images, n * row_tiles * column_tiles);
  if (p.tile.images > 1) {
    EXPECT_EQ(row_tiles * column_tiles, 1);
  }
  EXPECT_GE(p.channel_tiles * plan.width, columns);
}

// Tiles cover the outputs, and what a block asks for fits shared memory.
void expect_all_cover_and_fit(DType dtype, ConvMath math) {
  for (const int64_t n : {1, 3, 128, 512}) {
    for (const int64_t side : {5, 7, 14, 28, 32, 113}) {
      for (const int64_t stride : {1, 2}) {
        for (const int64_t c : {32, 64}) {
          const Window window{.kernel = 3, .stride = stride, .padding = 1};
          SCOPED_TRACE(concat(dtype, " n ", n, " side ", side, " stride ", stride, " c ", c));
          for (const Kind kind : {Kind::forward, Kind::input}) {
            const ConvProblem problem = problem_of(kind, dtype, n, c, c, side, window, 1, math);
            expect_covers_and_fits(plan_halo_gather(problem), n, c);
          }
          const HaloWgradPlan plan =
              plan_halo_wgrad(problem_of(Kind::weight, dtype, n, c, c, side, window, 1, math));
          const HaloWgrad& p = plan.shape;
          if (plan.slices == 0) {
            EXPECT_EQ(side, 113);
            continue;
          }
          EXPECT_LE(plan.shared, kMostShared);
          EXPECT_LE(plan.slices, kHaloProcessors);
          EXPECT_GE(plan.slices * p.tiles_per_slice, p.tiles);
          EXPECT_LT((plan.slices - 1) * p.tiles_per_slice, p.tiles);
          EXPECT_GE(p.row_tiles * p.tile.rows, p.out_h);
          EXPECT_LE(p.row_units * p.column_units * p.splits, kHaloWgradWarps);
          EXPECT_GE(p.column_units * halo_wgrad_columns(plan.split), 9 * p.padded);
        }
      }
    }
  }
}

TEST(ConvHaloPlan, TilesCoverAndFit) {
  expect_all_cover_and_fit(DType::f32, ConvMath::f32);
  expect_all_cover_and_fit(DType::f32, ConvMath::tensor);
  expect_all_cover_and_fit(DType::bf16, ConvMath::tensor);
}

// Strict f32 has three products of each two, and its weights in two parts.
TEST(ConvHaloPlan, StrictF32TakesTwoParts) {
  for (const Kind kind : kKinds) {
    const auto problem = [&](int64_t c, int64_t k, ConvMath math) {
      return problem_of(kind, DType::f32, 512, c, k, 28, kSame, 1, math);
    };
    EXPECT_TRUE(conv_is_halo(problem(32, 32, ConvMath::f32)));
    EXPECT_TRUE(conv_is_halo(problem(64, 64, ConvMath::f32)));
    EXPECT_TRUE(conv_is_halo(problem(16, 16, ConvMath::tensor)));
    EXPECT_FALSE(conv_is_halo(problem(16, 16, ConvMath::f32)));
  }
  const auto weights = [](int64_t n) {  // sums of 49 terms, or of 98
    return problem_of(Kind::weight, DType::f32, n, 32, 32, 7, kSame, 1, ConvMath::f32);
  };
  EXPECT_FALSE(conv_is_halo(weights(1)));
  EXPECT_TRUE(conv_is_halo(weights(2)));
  const auto plan = [](ConvMath math) {
    return plan_halo_gather(problem_of(Kind::forward, DType::f32, 512, 64, 64, 28, kSame, 1, math));
  };
  EXPECT_TRUE(plan(ConvMath::f32).split);
  EXPECT_EQ(plan(ConvMath::f32).width, 32);
  EXPECT_FALSE(plan(ConvMath::tensor).split);
  EXPECT_EQ(plan(ConvMath::tensor).width, 64);
}

// Offsets within an image's results are counted in 32 bits: images beyond that go elsewhere.
TEST(ConvHaloPlan, LeavesHugeImages) {
  EXPECT_TRUE(conv_is_halo(problem_of(Kind::forward, DType::bf16, 1, 32, 32, 2000, kSame)));
  EXPECT_FALSE(conv_is_halo(problem_of(Kind::forward, DType::bf16, 1, 32, 32, 2100, kSame)));
  EXPECT_FALSE(conv_is_halo(problem_of(Kind::forward, DType::bf16, 600, 32, 32, 2000, kSame)));
}

// The input of such a tile has more pixels than 32 bits can count.
TEST(ConvHaloPlan, LeavesHugeDilations) {
  const Window window{.kernel = {3, 8}, .padding = {1, 511}, .dilation = {1, 146}};
  for (const Kind kind : kKinds) {
    EXPECT_FALSE(conv_is_halo(problem_of(kind, DType::bf16, 1, 16, 16, {4199304, 1}, window)));
  }
}

// Of cards with less than Hopper's 227 KB: 163 and 99.
TEST(ConvHaloPlan, FitsTheSharedMemoryOfTheCard) {
  int halo = 0, smaller = 0, first = 0;
  for (const int64_t shared : {163 * 1024, 99 * 1024}) {
    for (const Kind kind : kKinds) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        for (const int64_t c : {1, 3, 32, 64}) {
          for (const int64_t side : {7, 14, 24, 32, 56}) {
            const ConvProblem large = problem_of(kind, dtype, 8, c, 64, side, kSame);
            ConvProblem problem = large;
            problem.shared = shared;
            if (conv_is_first(problem)) {
              ++first;
              EXPECT_LE(kind == Kind::input ? plan_first_input(problem).shared
                                            : conv_first_shared(problem),
                        shared);
            }
            if (!conv_is_halo(problem)) continue;
            ++halo;
            const auto bytes = [&](const ConvProblem& of) {
              return kind == Kind::weight ? plan_halo_wgrad(of).shared
                                          : plan_halo_gather(of).shared;
            };
            EXPECT_LE(bytes(problem), shared);
            smaller += bytes(problem) < bytes(large);
          }
        }
      }
    }
  }
  EXPECT_GE(halo, 60);
  EXPECT_GE(smaller, 20);
  EXPECT_GE(first, 60);
}

// The input of such a tile has more pixels than 32 or 64 bits can count.
TEST(ConvHaloPlan, FirstLayersLeaveHugeWindows) {
  constexpr int64_t kMost = (int64_t{1} << 31) - 1;
  for (const Kind kind : {Kind::forward, Kind::weight}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const int64_t c : {1, 3, 4}) {
        const auto is_first = [&](Pair map, const Window& window) {
          return conv_is_first(problem_of(kind, dtype, 1, c, 8, map, window));
        };
        for (int64_t d = 1 << 16; d <= kMost; d *= 2) {
          EXPECT_FALSE(is_first({512, 1}, {{1, 2}, {1, 1}, {0, d / 2}, {1, d}})) << c << ' ' << d;
          EXPECT_FALSE(is_first(8, {.kernel = 2, .padding = d / 2 + 1, .dilation = d}));
        }
        EXPECT_FALSE(is_first(8, {.kernel = 3, .stride = kMost, .padding = kMost / 2 + 1}));
      }
    }
  }
}

}  // namespace
}  // namespace gradus
