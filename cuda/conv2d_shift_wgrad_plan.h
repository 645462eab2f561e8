// Weight gradients whose taps are distances in shared memory (conv2d_shift_wgrad.cuh, and
// TurnedHalo of conv2d_wgmma_turned.cuh): which they are, and their tiles; pure host functions.
#pragma once

#include "cuda/conv2d_wgmma_plan.h"

namespace gradus {

// Tiles of dy, width x rows pixels, which the images are cut into.
struct ShiftWgradPlan {
  int width = 0, rows = 0;              // 0: none
  int row_tiles = 0, column_tiles = 0;  // of an image
  int k_tiles = 0, position_tiles = 0;  // of the weights
  Chunks slices;                        // of all images' tiles
  // TF32: a block has 64 channels c, all taps and 64 channels k; else 128, the 3 of a row and 128.
  bool all_taps = false;
  // 16 bits: a block has 64 channels each and the taps of one row, and x no halo above and below;
  // else all nine taps, and slices come in pairs.
  bool by_rows = false;
  // 16 bits: pixels of a row of x, `passes` times `per_row` sixteens of pixels, after each pass
  // `skip` more; the second eight of each is `eight` behind the first.
  int pitch = 0, passes = 0, per_row = 0, skip = 0, eight = 0;
  int stage_bytes = 0, stages = 0;
  int64_t tiles() const { return int64_t{k_tiles} * position_tiles; }
  int x_rows() const { return rows + (by_rows ? 0 : 2); }
};

// Of the tiles' pixels, at most so many do not exist.
inline bool shift_wgrad_fills(const ConvProblem& problem, const ShiftWgradPlan& plan) {
  const int64_t pixels = int64_t{plan.width} * plan.rows * plan.row_tiles * plan.column_tiles;
  return 5 * problem.p * problem.q >= 4 * pixels;
}

// TF32: 32 pixels, 8 x 4, 16 x 2 or 32 x 1, so that as few as can be do not exist; of equal ones
// the widest, whose rows take fewer copies. One slice to a block.
inline ShiftWgradPlan plan_shift_wgrad_tf32(const ConvProblem& problem) {
  constexpr int64_t kBlocks = 132;
  ShiftWgradPlan plan;
  plan.all_taps = problem.c < 128 || problem.k < 128;
  if (problem.c % (plan.all_taps ? 64 : 128) != 0) return {};
  int64_t fewest = 0;
  for (const int width : {32, 16, 8}) {
    const int64_t rows = ceil_div(problem.p, 32 / width), columns = ceil_div(problem.q, width);
    if (fewest > 0 && rows * columns >= fewest) continue;
    fewest = rows * columns;
    plan.width = width, plan.rows = 32 / width;
    plan.row_tiles = static_cast<int>(rows), plan.column_tiles = static_cast<int>(columns);
  }
  plan.k_tiles = static_cast<int>(ceil_div(problem.k, plan.all_taps ? 64 : 128));
  plan.position_tiles = static_cast<int>(plan.all_taps ? problem.c / 64 : 3 * problem.c / 128);
  const int64_t slices = std::max<int64_t>(1, kBlocks / plan.tiles());
  plan.slices = plan_chunks(problem.n * fewest, 4, slices);
  return plan;
}

// 16 bits: whole rows, the sum over 16 pixels at a time along one, or along two of 8; as many rows
// as leave room for four stages, so that as few as can be do not exist. With 64 channels each,
// where the partial sums of all taps would be most of what is moved, three blocks to a slice, else
// two slices to a cluster.
inline ShiftWgradPlan plan_shift_wgrad_half(const ConvProblem& problem) {
  constexpr int64_t kClusters = 66, kRoom = 221 * 1024, kBehind = 512;
  if (problem.c % 64 != 0 || problem.q > 128) return {};
  const auto q = static_cast<int>(problem.q);
  ShiftWgradPlan plan;
  plan.width = q <= 8 ? 8 : static_cast<int>(ceil_div(q, 16)) * 16;
  plan.pitch = std::max(plan.width, q + 2);
  plan.column_tiles = 1;
  plan.by_rows = problem.c == 64 && problem.k == 64;
  int64_t fewest = 0;
  for (int rows = plan.width == 8 ? 2 : 1; rows <= 64; rows += plan.width == 8 ? 2 : 1) {
    const int64_t pixels =
        int64_t{plan.width} * rows + int64_t{plan.pitch} * (rows + (plan.by_rows ? 0 : 2));
    const int64_t stage = ceil_div(pixels * 128 + kBehind, 1024) * 1024;
    const int64_t all = ceil_div(problem.p, rows) * rows;
    if (4 * stage > kRoom) break;
    if (fewest > 0 && all > fewest) continue;
    fewest = all;
    plan.rows = rows;
    plan.stage_bytes = static_cast<int>(stage);
  }
  if (plan.rows == 0) return {};
  plan.stages = static_cast<int>(std::min<int64_t>(8, kRoom / plan.stage_bytes));
  const int together = plan.width == 8 ? 2 : 1;  // rows
  plan.passes = plan.rows / together;
  plan.per_row = together * plan.width / 16;
  plan.skip = together * plan.pitch - 16 * plan.per_row;
  plan.eight = together == 2 ? plan.pitch : 8;
  plan.row_tiles = static_cast<int>(ceil_div(problem.p, plan.rows));
  plan.k_tiles = static_cast<int>(ceil_div(problem.k, 64));
  plan.position_tiles = static_cast<int>(problem.c / 64);
  if (plan.by_rows) {
    plan.slices = plan_chunks(problem.n * plan.row_tiles, 1, 2 * kClusters / 3);
    return plan;
  }
  const int64_t pairs = std::max<int64_t>(1, kClusters / plan.tiles());
  // Of the places on the card, at most so many stay empty in the last round.
  const int64_t clusters = pairs * plan.tiles(), rounds = ceil_div(clusters, kClusters);
  if (8 * clusters < 7 * rounds * kClusters) return {};
  plan.slices = plan_chunks(problem.n * plan.row_tiles, 1, 2 * pairs);
  return plan;
}

// TF32 and 16 bits; 3 x 3 windows of stride 1, whole boxes of channels, images that fill their
// tiles.
inline ShiftWgradPlan plan_shift_wgrad(const ConvProblem& problem) {
  const Window& window = problem.window;
  const int64_t pixels = problem.n * problem.p * problem.q;
  if (!problem.wgmma || !problem.ready || problem.groups != 1) return {};
  if (problem.kind != ConvProblem::Kind::weight || problem.math != ConvMath::tensor) return {};
  if (window.kernel != Pair(3) || window.stride != Pair(1) || window.dilation != Pair(1)) return {};
  if (problem.k < 64 || problem.k * size_of(problem.dtype) % 16 != 0) return {};
  if (pixels < 1024 || pixels >= (int64_t{1} << 31)) return {};
  const ShiftWgradPlan plan =
      problem.dtype == DType::f32 ? plan_shift_wgrad_tf32(problem) : plan_shift_wgrad_half(problem);
  return plan.width > 0 && shift_wgrad_fills(problem, plan) ? plan : ShiftWgradPlan{};
}

}  // namespace gradus
