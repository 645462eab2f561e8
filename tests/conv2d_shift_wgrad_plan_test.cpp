// Weight gradients whose taps are distances in shared memory: which they are, and the whole of
// their index arithmetic, walked on the host.
#include "cuda/conv2d_shift_wgrad_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "cuda/conv2d_plan.h"
#include "cuda/device/conv2d_turned_tile.h"
#include "tests/support/conv_problem.h"

namespace gradus {
namespace {

ConvProblem problem(int64_t n, int64_t c, int64_t k, int64_t h, int64_t w, int64_t padding = 1) {
  return on_hopper(
      problem_of(Kind::weight, DType::f32, n, c, k, {h, w}, {.kernel = 3, .padding = padding}));
}

TEST(ConvShiftWgradPlan, WhatIsTaken) {
  const auto plan = [](int64_t c, int64_t k, int64_t side) {
    return plan_shift_wgrad(problem(256, c, k, side, side));
  };
  EXPECT_EQ(plan(128, 128, 16).width, 16);
  EXPECT_FALSE(plan(128, 128, 16).all_taps);
  EXPECT_EQ(plan(128, 128, 16).slices.count, 44);
  EXPECT_EQ(plan(256, 256, 8).width, 8);
  EXPECT_EQ(plan(64, 64, 32).width, 32);
  EXPECT_TRUE(plan(64, 64, 32).all_taps);
  EXPECT_EQ(plan(64, 64, 14).width, 16);
  EXPECT_EQ(plan(64, 64, 56).width, 8);
  EXPECT_EQ(plan(128, 72, 28).width, 32);
  EXPECT_EQ(plan(64, 64, 7).width, 0);   // half as many pixels again
  EXPECT_EQ(plan(32, 64, 16).width, 0);  // and in chunks of other paths
  EXPECT_EQ(plan(192, 136, 16).width, 0);
  EXPECT_EQ(plan(64, 32, 16).width, 0);

  const auto taken = [](const ConvProblem& one) { return plan_conv_path(one) == ConvPath::shift; };
  const ConvProblem whole = problem(256, 128, 128, 16, 16);
  EXPECT_TRUE(taken(whole));
  const auto without = [&](auto&& change) {
    ConvProblem other = whole;
    change(other);
    return taken(other);
  };
  EXPECT_FALSE(without([](ConvProblem& o) { o.wgmma = false; }));
  EXPECT_FALSE(without([](ConvProblem& o) { o.ready = false; }));
  EXPECT_FALSE(without([](ConvProblem& o) { o.math = ConvMath::f32; }));
  EXPECT_TRUE(without([](ConvProblem& o) { o.dtype = DType::bf16; }));
  EXPECT_FALSE(without([](ConvProblem& o) { o.dtype = DType::f16, o.c = 96; }));
  EXPECT_FALSE(without([](ConvProblem& o) { o.dtype = DType::f16, o.c = o.k = 384; }));
  EXPECT_FALSE(without([](ConvProblem& o) { o.window.stride = Pair(2); }));
  EXPECT_FALSE(without([](ConvProblem& o) { o.window.dilation = Pair(2); }));
  EXPECT_FALSE(without([](ConvProblem& o) { o.window.kernel = {3, 1}; }));
  EXPECT_FALSE(without([](ConvProblem& o) { o.n = 1; }));
}

// Every pixel of dy is in one tile, every slice has some, and blocks fill the card once.
TEST(ConvShiftWgradPlan, TilesAndSlicesCoverTheImages) {
  int taken = 0;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t c : {64, 128, 256}) {
      for (const int64_t n : {2, 33, 512}) {
        for (const int64_t side : {14, 15, 16, 28, 31, 32, 40, 56}) {
          ConvProblem one = problem(n, c, 128, side, side);
          one.dtype = dtype;
          const ShiftWgradPlan plan = plan_shift_wgrad(one);
          if (plan.width == 0) continue;
          ++taken;
          EXPECT_GE(plan.column_tiles * plan.width, one.q);
          EXPECT_LT((plan.column_tiles - 1) * plan.width, one.q);
          EXPECT_GE(plan.row_tiles * plan.rows, one.p);
          EXPECT_LT((plan.row_tiles - 1) * plan.rows, one.p);
          const int64_t tiles = n * plan.row_tiles * plan.column_tiles;
          EXPECT_GE(plan.slices.count * plan.slices.size, tiles);
          EXPECT_LT((plan.slices.count - 1) * plan.slices.size, tiles);
          EXPECT_LE(plan.slices.count * plan.tiles(), 132);
        }
      }
    }
  }
  EXPECT_GT(taken, 80);
}

// 16 bits: the pixels of dy and of x that meet in the products of tap (r, s), of whole images.
std::vector<std::pair<int, int>> pixels_that_meet(const ConvProblem& one,
                                                  const ShiftWgradPlan& plan, int row_tile, int r,
                                                  int s) {
  std::vector<std::pair<int, int>> met;
  const auto index = [](int i, int j, int64_t h, int64_t w) {
    const bool inside = i >= 0 && i < h && j >= 0 && j < w;
    return inside ? i * static_cast<int>(w) + j : -1;
  };
  const int row0 = row_tile * plan.rows;
  const auto h0 = row0 - static_cast<int>(one.window.padding[0]) + (plan.by_rows ? r : 0);
  const auto w0 = -static_cast<int>(one.window.padding[1]);
  int dy = 0, x = (plan.by_rows ? 0 : r * plan.pitch) + s;
  for (int pass = 0; pass < plan.passes; ++pass, x += plan.skip) {
    for (int i = 0; i < plan.per_row; ++i, dy += 16, x += 16) {
      for (int k = 0; k < 16; ++k) {
        const int from = dy + k, to = x + k / 8 * plan.eight + k % 8;
        EXPECT_LT(to * 128 + 127, plan.stage_bytes - plan.width * plan.rows * 128);
        const int y_at = index(row0 + from / plan.width, from % plan.width, one.p, one.q);
        const int x_at = index(h0 + to / plan.pitch, w0 + to % plan.pitch, one.h, one.w);
        if (y_at >= 0 && x_at >= 0 && to / plan.pitch < plan.x_rows()) met.push_back({y_at, x_at});
      }
    }
  }
  EXPECT_EQ(dy, plan.width * plan.rows);
  return met;
}

void expect_pixels_meet_their_taps(int64_t k) {
  for (const auto& [h, w, padding] : {std::tuple{32, 32, 1},
                                      {16, 16, 1},
                                      {14, 14, 1},
                                      {8, 8, 1},
                                      {28, 28, 1},
                                      {15, 31, 0},
                                      {16, 13, 2},
                                      {56, 56, 1},
                                      {10, 10, 0},
                                      {34, 50, 0},
                                      {14, 30, 2}}) {
    ConvProblem one = problem(64, 64, k, h, w, padding);
    one.dtype = DType::bf16;
    const ShiftWgradPlan plan = plan_shift_wgrad(one);
    ASSERT_GT(plan.width, 0) << h << ' ' << w;
    EXPECT_EQ(plan.by_rows, k == 64);
    EXPECT_GE(plan.stages, 4);
    EXPECT_EQ(plan.width * plan.rows % 8, 0);  // x begins at a multiple of 1024 bytes
    for (int r = 0; r < 3; ++r) {
      for (int s = 0; s < 3; ++s) {
        std::vector<std::pair<int, int>> met, wanted;
        for (int tile = 0; tile < plan.row_tiles; ++tile) {
          for (const auto& pair : pixels_that_meet(one, plan, tile, r, s)) met.push_back(pair);
        }
        for (int i = 0; i < one.p; ++i) {
          for (int j = 0; j < one.q; ++j) {
            const int u = i - padding + r, v = j - padding + s;
            if (u < 0 || u >= h || v < 0 || v >= w) continue;
            wanted.push_back({i * static_cast<int>(one.q) + j, u * w + v});
          }
        }
        EXPECT_EQ(met, wanted) << h << ' ' << w << ' ' << r << ' ' << s;
      }
    }
  }
}

TEST(ConvShiftWgradPlan, SixteensOfPixelsMeetTheirTaps) {
  expect_pixels_meet_their_taps(64);
  expect_pixels_meet_their_taps(128);
}

// Blocks of one row of taps each fill the card once, and every slice has steps.
TEST(ConvShiftWgradPlan, SlicesOfRowsOfTaps) {
  for (const int64_t n : {6, 33, 128, 512}) {
    ConvProblem one = problem(n, 64, 64, 14, 14);
    one.dtype = DType::f16;
    const ShiftWgradPlan plan = plan_shift_wgrad(one);
    ASSERT_TRUE(plan.by_rows);
    EXPECT_GE(plan.stages, 4);
    EXPECT_LE(plan.stages * plan.stage_bytes + 6 * 1024, 227 * 1024);
    EXPECT_LE(3 * plan.slices.count, 132);
    EXPECT_GE(plan.slices.count * plan.slices.size, n * plan.row_tiles);
    EXPECT_LT((plan.slices.count - 1) * plan.slices.size, n * plan.row_tiles);
  }
}

// Small whole numbers that differ from element to element.
float value_at(size_t i, uint32_t seed) {
  uint32_t h = static_cast<uint32_t>(i) * 2654435761u + seed * 0x9E3779B9u;
  h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
  return static_cast<float>(static_cast<int>(h % 17) - 8);
}

// [n, h, w, channels], 0 outside.
struct Map {
  int64_t n, h, w, channels;
  uint32_t seed;
  float at(int64_t image, int64_t i, int64_t j, int64_t c) const {
    if (image >= n || i < 0 || i >= h || j < 0 || j >= w || c >= channels) return 0;
    return value_at(static_cast<size_t>(((image * h + i) * w + j) * channels + c), seed);
  }
};

// The kernel's steps as the copy engine, the turning warps and the products see shared memory.
template <bool AllTaps, int Width>
struct Walk {
  using X = TurnedHalo<AllTaps, Width>;
  const ConvProblem& problem;
  Map x, dy;
  std::vector<float> stage = std::vector<float>(X::kBytes / 4);
  std::vector<float> turned = std::vector<float>(X::kColumns * 32);
  std::vector<float> dw;  // [k][tap][c]

  explicit Walk(const ConvProblem& one)
      : problem(one),
        x{one.n, one.h, one.w, one.c, 1},
        dy{one.n, one.p, one.q, one.k, 2},
        dw(static_cast<size_t>(one.k * 9 * one.c)) {}

  void load(int64_t n, int row_tile, int column_tile, int column, int row0) {
    const int i0 = row_tile * X::kTileRows, j0 = column_tile * Width;
    const int64_t h = i0 - problem.window.padding[0] + X::first_row(column);
    const int64_t w = j0 - problem.window.padding[1];
    std::ranges::fill(stage, NAN);  // what no copy writes
    for (int box = 0; box < X::kBoxes; ++box) {
      for (int row = 0; row < X::kRows; ++row) {
        for (int p = 0; p < X::kRowPixels * 32; ++p) {
          const int pixel = p / 32, e = p % 32;
          const uint32_t at = box * X::kBoxBytes + row * X::kRowBytes + pixel * 128 +
                              ((e / 4 ^ pixel % 8) << 4) + e % 4 * 4;
          stage[at / 4] = x.at(n, h + row, w + pixel, X::first_channel(column) + box * 32 + e);
        }
      }
    }
    for (int k = 0; k < X::kColumns; ++k) {
      for (int term = 0; term < 32; ++term) {
        const int pixel = term / 8 * 8 + 2 * (term % 4) + term / 4 % 2;
        turned[turned_terms_at(k, term / 4) / 4 + static_cast<uint32_t>(term) % 4] =
            dy.at(n, i0 + pixel / Width, j0 + pixel % Width, row0 + k);
      }
    }
  }

  // Rows of a tile: [64][8 terms] of a step's eight.
  void multiply(int column, int row0) {
    for (int i = 0; i < 2 * X::kTiles * 4; ++i) {
      const int group = i % 2, tile = i / 2 % X::kTiles, eight = i / 2 / X::kTiles;
      const int first = X::position(column, static_cast<int>(problem.c), group, tile);
      if (first >= 9 * problem.c) continue;
      for (int t = 0; t < 128; ++t) {
        const int row = t / 32 * 16 + t % 32 / 4, q = t % 4;
        for (int e = 0; e < 4; ++e) {
          const uint32_t from = X::rows_at(group, tile, t, e / 2) ^ (e % 2 * 32);
          const float a = stage.at((from + X::eight_at(eight)) / 4);
          const int term = q + e / 2 * 4, position = first + row + e % 2 * 8;
          for (int k = 0; k < std::min<int64_t>(X::kColumns, problem.k - row0); ++k) {
            const float b = turned[turned_terms_at(k, 2 * eight + term / 4) / 4 +
                                   static_cast<uint32_t>(term) % 4];
            dw[static_cast<size_t>((row0 + k) * 9 * problem.c + position)] += a * b;
          }
        }
      }
    }
  }

  float wanted(int64_t k, int64_t tap, int64_t c) const {
    float sum = 0;
    for (int64_t m = 0; m < dy.n * dy.h * dy.w; ++m) {
      const int64_t j = m % dy.w, i = m / dy.w % dy.h, n = m / dy.w / dy.h;
      sum += dy.at(n, i, j, k) * x.at(n, i - problem.window.padding[0] + tap / 3,
                                      j - problem.window.padding[1] + tap % 3, c);
    }
    return sum;
  }
};

template <bool AllTaps, int Width>
void expect_exact(const ConvProblem& problem) {
  using X = TurnedHalo<AllTaps, Width>;
  Walk<AllTaps, Width> walk(problem);
  const auto row_tiles = static_cast<int>(ceil_div(problem.p, X::kTileRows));
  const auto column_tiles = static_cast<int>(ceil_div(problem.q, Width));
  const int columns = static_cast<int>(AllTaps ? problem.c / 64 : 3 * problem.c / 128);
  for (int step = 0; step < problem.n * row_tiles * column_tiles; ++step) {
    for (int column = 0; column < columns; ++column) {
      for (int row0 = 0; row0 < problem.k; row0 += X::kColumns) {
        walk.load(step / column_tiles / row_tiles, step / column_tiles % row_tiles,
                  step % column_tiles, column, row0);
        walk.multiply(column, row0);
      }
    }
  }
  for (int64_t k = 0; k < problem.k; ++k) {
    for (int64_t e = 0; e < 9 * problem.c; e += k % 2 == 0 ? 5 : 7) {
      ASSERT_EQ(walk.dw[static_cast<size_t>(k * 9 * problem.c + e)],
                walk.wanted(k, e / problem.c, e % problem.c))
          << k << ' ' << e;
    }
  }
}

TEST(ConvShiftWgradPlan, EveryProductMeetsItsPixels) {
  expect_exact<true, 32>(problem(1, 64, 68, 3, 40));
  expect_exact<true, 16>(problem(2, 128, 64, 5, 14));
  expect_exact<true, 8>(problem(1, 64, 64, 6, 9, 0));
  expect_exact<false, 32>(problem(1, 128, 12, 2, 28, 2));
  expect_exact<false, 16>(problem(2, 256, 24, 3, 15));
  expect_exact<false, 8>(problem(1, 128, 132, 7, 7));
}

}  // namespace
}  // namespace gradus
