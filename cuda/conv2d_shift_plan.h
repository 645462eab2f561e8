// Convolutions whose taps are distances in shared memory (conv2d_shift.cuh): which they are, and
// their tiles; pure host functions.
#pragma once

#include "cuda/conv2d_wgmma_plan.h"

namespace gradus {

// Tiles of whole rows of an image. Their positions are those of the rows' outputs and of the halo
// at the end of each row, one row after the other.
struct ShiftPlan {
  int positions = 0;  // of a product; 0: none
  int rows = 0, pitch = 0, row_tiles = 0, box_rows = 0;
  int row_bytes = 0, slices = 0;  // of a pixel in shared memory; such parts of its channels
  int weight_bytes = 0, stage_bytes = 0, stages = 0;
  // Of the longest-working multiprocessor, in the time of a product's position: its tiles and one
  // that overlaps no other, each with what it takes whatever its size. With two stages the copies
  // of a tile wait for another's stores.
  int64_t cost = 0;
  ConvAxisPart h = {}, w = {};
  int64_t shared_bytes() const { return 2048 + weight_bytes + int64_t{stages} * stage_bytes; }
};

inline ShiftPlan plan_shift_tiles(const ConvProblem& problem, ShiftPlan plan, int positions) {
  constexpr int64_t kBlocks = 132, kRoom = 225 * 1024;
  const int reach_h = (plan.h.taps - 1) * plan.h.step, reach_w = (plan.w.taps - 1) * plan.w.step;
  plan.pitch = plan.w.positions + reach_w;
  if (plan.pitch > positions) return {};
  plan.row_tiles = static_cast<int>(ceil_div(plan.h.positions, positions / plan.pitch));
  plan.rows = static_cast<int>(ceil_div(plan.h.positions, plan.row_tiles));
  plan.box_rows = plan.rows + reach_h;
  if (plan.pitch > 256 || plan.box_rows > 256) return {};
  // Products read past the last row, and results of 128 bytes a position take the tile's place, 16
  // positions at a time.
  const int64_t read = positions + int64_t{reach_h} * plan.pitch + reach_w;
  const int64_t pixels = std::max<int64_t>(read, int64_t{plan.box_rows} * plan.pitch);
  const int64_t results = ceil_div(positions, 16) * 16 * 128;
  const int64_t stage = ceil_div(std::max(pixels * plan.row_bytes, results), 1024) * 1024;
  const int64_t weights = int64_t{plan.h.taps} * plan.w.taps * plan.slices * 64 * plan.row_bytes;
  const int64_t stages = std::min<int64_t>(4, (kRoom - weights) / stage);
  if (weights > kRoom || stages < 2) return {};
  // Of the products' columns, at most so many belong to no output.
  if (4 * plan.h.positions * plan.w.positions < 3 * plan.row_tiles * positions) return {};
  plan.positions = positions;
  plan.weight_bytes = static_cast<int>(weights);
  plan.stage_bytes = static_cast<int>(stage);
  plan.stages = static_cast<int>(stages);
  plan.cost = (ceil_div(problem.n * plan.row_tiles, kBlocks) + 1) * (positions + 32);
  if (stages == 2) plan.cost = plan.cost * 4 / 3;
  return plan;
}

// Strides of 1, a few channels on both sides, more than one tap.
inline ShiftPlan plan_shift(const ConvProblem& problem) {
  const bool backward = problem.kind == ConvProblem::Kind::input;
  const int64_t size = size_of(problem.dtype), in = problem.channels();
  const int64_t out = backward ? problem.c : problem.k;
  if (!problem.wgmma || !problem.ready || problem.groups != 1) return {};
  if (problem.kind == ConvProblem::Kind::weight || problem.math != ConvMath::tensor) return {};
  if (problem.window.stride != Pair(1) || problem.taps() == 1) return {};
  if ((in != 32 && in != 64) || out > 64 || out < 32 || out * size % 16 != 0) return {};
  if (problem.n * problem.h * problem.w < 1024 || problem.n >= (int64_t{1} << 22)) return {};
  ShiftPlan plan, best;
  for (size_t i = 0; i < 2; ++i) {
    const int64_t x = i == 0 ? problem.h : problem.w, y = i == 0 ? problem.p : problem.q;
    if (std::max(x, y) > 256) return {};
    (i == 0 ? plan.h : plan.w) =
        backward ? backward_parts(problem.window, i, x)[0] : forward_part(problem.window, i, y);
  }
  plan.row_bytes = static_cast<int>(std::min<int64_t>(128, in * size));
  plan.slices = static_cast<int>(in * size / plan.row_bytes);
  for (const int positions : {224, 136, 112}) {
    const ShiftPlan candidate = plan_shift_tiles(problem, plan, positions);
    if (candidate.positions > 0 && (best.positions == 0 || candidate.cost < best.cost)) {
      best = candidate;
    }
  }
  return best;
}

}  // namespace gradus
