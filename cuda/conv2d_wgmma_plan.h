// Which convolutions Hopper's warpgroup-wide products take, and how; pure host functions.
#pragma once

#include <numeric>
#include <vector>

#include "cuda/conv2d_problem.h"

namespace gradus {

// One axis of the pixels that read the same taps of the window: output positions first, first +
// stride, ...; the i-th of them and tap t read the input at i·scale + shift + t·step, and tap t is
// the window's tap tap_first + t·tap_step.
struct ConvAxisPart {
  int taps, scale, shift, step;
  int first, stride, positions;
  int tap_first, tap_step;
};

// Forward: all positions are one part.
inline ConvAxisPart forward_part(const Window& window, size_t i, int64_t positions) {
  const auto number = [](int64_t value) { return static_cast<int>(value); };
  return {number(window.kernel[i]),
          number(window.stride[i]),
          -number(window.padding[i]),
          number(window.dilation[i]),
          0,
          1,
          number(positions),
          0,
          1};
}

// Backward to an input of `extent`: one part per remainder of the stride. Input position a + i·s is
// read through tap r at output position i + (a + padding - r·dilation) / s where that is whole, so
// its taps are s apart, and from the last one on output positions grow by the dilation.
inline std::vector<ConvAxisPart> backward_parts(const Window& window, size_t i, int64_t extent) {
  const auto s = static_cast<int>(window.stride[i]), d = static_cast<int>(window.dilation[i]);
  const auto kernel = static_cast<int>(window.kernel[i]);
  std::vector<ConvAxisPart> parts;
  for (int a = 0; a < s && a < extent; ++a) {
    const int from = a + static_cast<int>(window.padding[i]);
    int r = kernel - 1;
    while (r >= 0 && (from - r * d) % s != 0) --r;
    const int positions = static_cast<int>(ceil_div(extent - a, s));
    parts.push_back(
        {r < 0 ? 0 : r / s + 1, 1, r < 0 ? 0 : (from - r * d) / s, d, a, s, positions, r, -s});
  }
  return parts;
}

// What the copy engine can describe: corners of 8 signed bits, offsets of 8 unsigned ones.
inline bool fits_copy_engine(const ConvAxisPart& part, int64_t extent) {
  const int64_t upper = part.shift + int64_t{part.positions} * part.scale - extent;
  return part.taps > 0 && part.scale <= 8 && part.shift >= -128 && part.shift < 128 &&
         upper >= -128 && upper < 128 && int64_t{part.taps - 1} * part.step < 256;
}

inline bool axis_takes_wgmma(const ConvProblem& problem, size_t i) {
  const bool backward = problem.kind == ConvProblem::Kind::input;
  const int64_t x = i == 0 ? problem.h : problem.w, y = i == 0 ? problem.p : problem.q;
  if (!backward) return fits_copy_engine(forward_part(problem.window, i, y), x);
  if (problem.window.stride[i] > 2) return false;
  if (std::gcd(problem.window.stride[i], problem.window.dilation[i]) != 1) return false;
  for (const ConvAxisPart& part : backward_parts(problem.window, i, x)) {
    if (!fits_copy_engine(part, y)) return false;
  }
  return true;
}

// Rows of 128 bytes of channels, whole vectors of results, and enough of both to fill the tiles;
// the weight gradient in f32 has large tiles only. Short sums in strict f32 are left to plain
// multiply-adds, whose error is smaller there.
inline bool conv_takes_wgmma(const ConvProblem& problem) {
  const int64_t size = size_of(problem.dtype);
  const bool weight = problem.kind == ConvProblem::Kind::weight;
  const int64_t in = problem.channels(), pixels_y = problem.n * problem.p * problem.q;
  const int64_t out = problem.kind == ConvProblem::Kind::input ? problem.c : problem.k;
  const int64_t pixels =
      problem.kind == ConvProblem::Kind::input ? problem.n * problem.h * problem.w : pixels_y;
  if (!problem.wgmma || problem.groups != 1 || problem.math == ConvMath::f64) return false;
  if (in * size % 128 != 0 || out * size % 16 != 0) return false;
  if (pixels < 1024 || pixels >= (int64_t{1} << 31)) return false;
  if (out < 64) return false;
  const int64_t least = problem.math == ConvMath::f32 ? 64 : 128;
  if (weight && size == 4 && (in < least || out < least || problem.taps() == 1)) return false;
  if (!weight && problem.math == ConvMath::f32 && in * problem.taps() <= 64) return false;
  return axis_takes_wgmma(problem, 0) && axis_takes_wgmma(problem, 1);
}

struct WgmmaTile {
  int rows = 0;
  int columns = 0;
  friend bool operator==(const WgmmaTile&, const WgmmaTile&) = default;
};

// Whether the last of the tiles of 128 rows would be half empty.
inline bool few_rows(int64_t rows) { return (rows + 127) % 128 < 64; }

// Tiles of channels x pixels. 132 blocks run at a time: the tile that takes the fewest rounds of
// them, the larger one where two are equal.
inline WgmmaTile plan_wgmma_gather(ConvMath math, int64_t pixels, int64_t columns) {
  constexpr int64_t kBlocks = 132;
  if (few_rows(columns)) return {64, 256};
  if (math == ConvMath::f32) return {128, 128};
  const auto rounds = [&](int64_t width) {
    return ceil_div(ceil_div(columns, 128) * ceil_div(pixels, width), kBlocks) * width;
  };
  return {128, rounds(256) <= rounds(128) ? 256 : 128};
}

struct WgmmaWgradPlan {
  WgmmaTile tile;      // output channels x positions (r, s, channel)
  bool split = false;  // f32 operands in two parts
  Chunks chunks;       // of the pixels, so many that every block has about one
};
// tile: 0 x 0 for the best known; rounds: blocks for each place of the card.
inline WgmmaWgradPlan plan_wgmma_wgrad(DType dtype, ConvMath math, int64_t pixels, int64_t rows,
                                       int64_t depth, WgmmaTile tile = {}, int rounds = 1) {
  constexpr int64_t kBlocks = 132;
  const bool split = math == ConvMath::f32;
  if (tile == WgmmaTile{}) {
    tile = {128, depth <= 128 ? 128 : 256};
    if (dtype == DType::f32) {
      tile = {split && rows <= 64 ? 64 : 128, split ? 256 : 384};
    } else if (few_rows(rows)) {
      tile = {64, 256};
    }
  }
  const int64_t tiles = ceil_div(rows, tile.rows) * ceil_div(depth, tile.columns);
  const int64_t slices = std::max<int64_t>(1, rounds * kBlocks / tiles);
  return {tile, split, plan_chunks(pixels, 256, slices, 64)};
}

}  // namespace gradus
