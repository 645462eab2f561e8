// Weight gradients whose taps are distances in shared memory (conv2d_wgmma_turned.cuh, TurnedHalo):
// which they are, and their tiles; pure host functions.
#pragma once

#include "cuda/conv2d_wgmma_plan.h"

namespace gradus {

// Tiles of 32 pixels of dy, width x (32 / width), which the images are cut into.
struct ShiftWgradPlan {
  int width = 0;          // 8, 16 or 32; 0: none
  bool all_taps = false;  // a block has 64 channels c, all taps, 64 channels k; else 128, 3, 128
  int row_tiles = 0, column_tiles = 0;  // of an image
  int k_tiles = 0, position_tiles = 0;  // of the weights
  Chunks slices;                        // of all images' tiles, a block's each
  int rows() const { return 32 / width; }
};

// TF32; 3 x 3 windows of stride 1, whole boxes of channels, and images that fill their tiles.
inline ShiftWgradPlan plan_shift_wgrad(const ConvProblem& problem) {
  constexpr int64_t kBlocks = 132;
  const Window& window = problem.window;
  const int64_t pixels = problem.n * problem.p * problem.q;
  if (!problem.wgmma || !problem.ready || problem.groups != 1) return {};
  if (problem.kind != ConvProblem::Kind::weight || problem.dtype != DType::f32) return {};
  if (problem.math != ConvMath::tensor || window.kernel != Pair(3)) return {};
  if (window.stride != Pair(1) || window.dilation != Pair(1)) return {};
  if (problem.k < 64 || problem.k % 4 != 0 || pixels < 1024) return {};
  ShiftWgradPlan plan;
  plan.all_taps = problem.c < 128 || problem.k < 128;
  if (problem.c % (plan.all_taps ? 64 : 128) != 0) return {};
  int64_t fewest = 0;  // tiles of an image; the widest of these, whose rows take fewer copies
  for (const int width : {32, 16, 8}) {
    const int64_t rows = ceil_div(problem.p, 32 / width), columns = ceil_div(problem.q, width);
    if (fewest > 0 && rows * columns >= fewest) continue;
    fewest = rows * columns;
    plan.width = width;
    plan.row_tiles = static_cast<int>(rows), plan.column_tiles = static_cast<int>(columns);
  }
  // Of the tiles' pixels, at most so many do not exist.
  if (5 * problem.p * problem.q < 4 * 32 * fewest) return {};
  plan.k_tiles = static_cast<int>(ceil_div(problem.k, plan.all_taps ? 64 : 128));
  plan.position_tiles = static_cast<int>(plan.all_taps ? problem.c / 64 : 3 * problem.c / 128);
  const int64_t blocks = int64_t{plan.k_tiles} * plan.position_tiles;
  plan.slices = plan_chunks(problem.n * fewest, 4, std::max<int64_t>(1, kBlocks / blocks));
  return plan;
}

}  // namespace gradus
