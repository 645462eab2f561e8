// Convolutions whose taps are distances in shared memory: which they are, and what their tiles
// read.
#include "cuda/conv2d_shift_plan.h"

#include <gtest/gtest.h>

#include "cuda/conv2d_plan.h"
#include "tests/support/conv_problem.h"

namespace gradus {
namespace {

ConvProblem problem(Kind kind, DType dtype, int64_t c, int64_t k, int64_t h, int64_t w,
                    const Window& window) {
  return on_hopper(problem_of(kind, dtype, 64, c, k, {h, w}, window));
}

TEST(ConvShiftPlan, TakesFewChannelsAndNoStride) {
  const auto taken = [](const ConvProblem& one) { return plan_conv_path(one) == ConvPath::shift; };
  for (const Kind kind : {Kind::forward, Kind::input}) {
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
      EXPECT_TRUE(taken(problem(kind, dtype, 32, 64, 14, 14, kSame)));
      EXPECT_TRUE(taken(problem(kind, dtype, 64, 64, 14, 14, kSame)));
      EXPECT_TRUE(taken(problem(kind, dtype, 32, 32, 28, 28, kSame)));
      EXPECT_FALSE(taken(problem(kind, dtype, 128, 128, 14, 14, kSame)));
      EXPECT_FALSE(taken(problem(kind, dtype, 64, 64, 14, 14, {.kernel = 3, .stride = 2})));
      EXPECT_FALSE(taken(problem(kind, dtype, 64, 64, 14, 14, {.kernel = 1})));
    }
    ConvProblem one = problem(kind, DType::bf16, 64, 64, 14, 14, kSame);
    EXPECT_EQ(plan_shift(one).rows, 7);
    one.ready = false;
    EXPECT_FALSE(taken(one));
    one.ready = true, one.groups = 2;
    EXPECT_FALSE(taken(one));
    one.groups = 1, one.wgmma = false;
    EXPECT_FALSE(taken(one));
  }
  const Window tall{.kernel = {3, 1}, .padding = {1, 0}}, wide{.kernel = {3, 2}};
  EXPECT_EQ(plan_shift(problem(Kind::forward, DType::f32, 64, 64, 28, 4, tall)).pitch, 4);
  EXPECT_EQ(plan_shift(problem(Kind::forward, DType::f32, 64, 48, 20, 6, wide)).pitch, 6);
  EXPECT_EQ(plan_shift(problem(Kind::weight, DType::bf16, 64, 64, 14, 14, kSame)).positions, 0);
  ConvProblem strict = problem(Kind::forward, DType::f32, 64, 64, 14, 14, kSame);
  strict.math = ConvMath::f32;
  EXPECT_FALSE(taken(strict));
}

// The tiles that were fastest on an H100 (bench/log_conv2d_wgmma.md).
TEST(ConvShiftPlan, TilesAreAsLargeAsFillsTheCardAndKeepsThreeStages) {
  const auto positions = [](DType dtype, int64_t n, int64_t c, int64_t k, int64_t side) {
    ConvProblem one = problem(Kind::forward, dtype, c, k, side, side, kSame);
    one.n = n;
    return plan_shift(one).positions;
  };
  EXPECT_EQ(positions(DType::bf16, 128, 64, 64, 14), 112);
  EXPECT_EQ(positions(DType::bf16, 512, 64, 64, 14), 224);
  EXPECT_EQ(positions(DType::f32, 512, 32, 64, 14), 224);
  EXPECT_EQ(positions(DType::f32, 512, 64, 64, 14), 112);  // 224: two stages
  EXPECT_EQ(positions(DType::bf16, 128, 32, 32, 28), 224);
  EXPECT_EQ(positions(DType::bf16, 256, 64, 64, 32), 136);
  EXPECT_EQ(positions(DType::f32, 256, 64, 64, 32), 136);
}

// Every output is in one tile; the position of its tap is that of the input in the tile, inside of
// the stage.
void check_reads(const ConvProblem& one) {
  const ShiftPlan plan = plan_shift(one);
  if (plan.positions == 0) return;
  const bool backward = one.kind == Kind::input;
  const int64_t out_h = backward ? one.h : one.p, out_w = backward ? one.w : one.q;
  std::vector<int> written(static_cast<size_t>(out_h * out_w));
  int last = 0;
  for (int tile = 0; tile < plan.row_tiles; ++tile) {
    const int row0 = tile * plan.rows;
    for (int at = 0; at < plan.positions; ++at) {
      last = std::max(last, at + (plan.h.taps - 1) * plan.h.step * plan.pitch +
                                (plan.w.taps - 1) * plan.w.step);
      const int i = at / plan.pitch, j = at % plan.pitch;
      if (j >= out_w || i >= plan.rows || row0 + i >= out_h) continue;
      ++written[static_cast<size_t>((row0 + i) * out_w + j)];
      for (int r = 0; r < plan.h.taps; ++r) {
        for (int s = 0; s < plan.w.taps; ++s) {
          const int read = at + r * plan.h.step * plan.pitch + s * plan.w.step;
          ASSERT_LT(read, plan.box_rows * plan.pitch);
          EXPECT_EQ(row0 + plan.h.shift + read / plan.pitch,
                    row0 + i + plan.h.shift + r * plan.h.step);
          EXPECT_EQ(plan.w.shift + read % plan.pitch, j + plan.w.shift + s * plan.w.step);
        }
      }
    }
  }
  EXPECT_LE((last + 1) * plan.row_bytes, plan.stage_bytes);
  EXPECT_LE(plan.positions * 128, plan.stage_bytes);
  EXPECT_LE(plan.rows * plan.pitch, plan.positions);
  EXPECT_LE(plan.shared_bytes(), 227 * 1024);
  EXPECT_TRUE(std::ranges::all_of(written, [](int times) { return times == 1; }));
}

TEST(ConvShiftPlan, TilesReadWhatTheWindowReads) {
  for (const Kind kind : {Kind::forward, Kind::input}) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      for (const int64_t side : {7, 13, 14, 28, 32, 61}) {
        for (const int64_t padding : {0, 1, 2}) {
          for (const int64_t dilation : {1, 2}) {
            SCOPED_TRACE(concat(side, " padding ", padding, " dilation ", dilation));
            const Window window{.kernel = {3, 2}, .padding = padding, .dilation = dilation};
            check_reads(problem(kind, dtype, 32, 64, side, side + 1, window));
            check_reads(problem(kind, dtype, 64, 32, side + 1, side, window));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace gradus
