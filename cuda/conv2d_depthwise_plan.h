// Launch choices of depthwise convolutions (conv2d_depthwise.cuh); pure host functions.
#pragma once

#include "cuda/conv2d_halo_plan.h"

namespace gradus {

// Neighbouring columns of outputs of a thread: of a gather, and of dy.
inline constexpr int kDepthwiseStrip = 2, kDepthwiseWgradStrip = 4;
inline constexpr int kDepthwiseMostStrips = 8;  // of a block
// Rows of a gather's block, at most: measured.
inline constexpr int depthwise_rows(DType dtype) { return size_of(dtype) == 4 ? 4 : 8; }

// What the blocks of the depthwise kernels have: `strips` of columns of outputs, 128 bytes of
// channels, and of a gather a tile of rows of an image, of the weight gradient a run of rows of all
// images.
struct ConvDepthwisePlan {
  int strip = 1, strips = 1;
  int64_t row_tiles = 1;  // of an image: of a gather
  int64_t column_tiles = 1, channel_tiles = 1;
  Chunks rows;
  int64_t blocks() const { return rows.count * column_tiles * channel_tiles; }
};
inline ConvDepthwisePlan plan_conv_depthwise(const ConvProblem& problem) {
  const bool backward = problem.kind == ConvProblem::Kind::input;
  const bool weight = problem.kind == ConvProblem::Kind::weight;
  const int64_t height = backward ? problem.h : problem.p;
  ConvDepthwisePlan plan;
  plan.strip = weight ? kDepthwiseWgradStrip : kDepthwiseStrip;
  const int64_t strips = ceil_div(backward ? problem.w : problem.q, plan.strip);
  plan.column_tiles = ceil_div(strips, kDepthwiseMostStrips);
  plan.strips = static_cast<int>(ceil_div(strips, plan.column_tiles));
  plan.channel_tiles = ceil_div(problem.groups * size_of(problem.dtype), 128);
  if (!weight) {
    plan.row_tiles = ceil_div(height, depthwise_rows(problem.dtype));
    plan.rows = {problem.n * plan.row_tiles, ceil_div(height, plan.row_tiles)};
    return plan;
  }
  // As many blocks as run at a time: some 32 strips on each multiprocessor, and 24 where a stride
  // makes the rows of the input twice as long.
  const int64_t strips_at_once = problem.window.stride[0] == 2 ? 24 : 32;
  const int64_t blocks = kHaloProcessors * std::min<int64_t>(24, strips_at_once / plan.strips);
  plan.rows = plan_chunks(problem.n * height, 8,
                          std::max<int64_t>(1, blocks / (plan.column_tiles * plan.channel_tiles)));
  return plan;
}

inline constexpr int64_t kDepthwiseMostRows = 8;  // measured
// What the blocks of the kernels that walk down rows on Hopper have (conv2d_depthwise_rows.cuh):
// 128 bytes of channels, 16 or 32 columns and some rows of outputs of an image; no rows: those
// kernels do not pay.
struct ConvDepthwiseRowsPlan {
  int columns = 32;
  int64_t rows = 0;
  int64_t row_tiles = 1, column_tiles = 1, channel_tiles = 1;
  int64_t blocks() const { return row_tiles * column_tiles * channel_tiles; }  // of an image
};
inline ConvDepthwiseRowsPlan plan_conv_depthwise_rows(const ConvProblem& problem) {
  const bool backward = problem.kind == ConvProblem::Kind::input;
  const int64_t height = backward ? problem.h : problem.p, width = backward ? problem.w : problem.q;
  const int64_t bytes = problem.groups * size_of(problem.dtype);
  ConvDepthwiseRowsPlan plan;
  if (!problem.wgmma || problem.window.stride != Pair(1) || problem.h * problem.w == 0) return plan;
  // The fewest pixels to copy.
  if (ceil_div(width, 16) * 18 < ceil_div(width, 32) * 34) plan.columns = 16;
  plan.column_tiles = ceil_div(width, plan.columns);
  plan.channel_tiles = ceil_div(bytes, 128);
  // Threads without outputs work, too.
  const int64_t all = plan.column_tiles * plan.columns * plan.channel_tiles * 128;
  if (3 * all > 4 * width * bytes) return plan;
  plan.row_tiles = ceil_div(height, kDepthwiseMostRows);
  plan.rows = ceil_div(height, plan.row_tiles);
  if (problem.n * plan.blocks() > kMaxGridX) plan.rows = 0;
  return plan;
}

// Depthwise filters of 3 x 3, channels-last, whole 16-byte vectors.
inline bool conv_is_depthwise(const ConvProblem& problem) {
  const Window& window = problem.window;
  const int64_t most = problem.kind == ConvProblem::Kind::input ? 1 : 2;
  return problem.ready && problem.dtype != DType::f64 && problem.c == 1 && problem.k == 1 &&
         problem.groups % (16 / size_of(problem.dtype)) == 0 && problem.groups <= 2048 &&
         window.kernel == Pair(3) && window.dilation == Pair(1) &&
         window.stride[0] == window.stride[1] && window.stride[0] <= most &&
         plan_conv_depthwise(problem).blocks() <= kMaxGridX;
}

}  // namespace gradus
