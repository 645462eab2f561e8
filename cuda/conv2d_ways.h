// The ways in which a convolution can be computed, for core/autotune.h to choose from, and what a
// choice is kept by; pure host functions.
#pragma once

#include <string>
#include <vector>

#include "cuda/conv2d_plan.h"

namespace gradus {

inline constexpr std::string_view to_string(ConvPath path) {
  switch (path) {
    case ConvPath::depthwise:
      return "depthwise";
    case ConvPath::first:
      return "first";
    case ConvPath::direct:
      return "direct";
    case ConvPath::shift:
      return "shift";
    case ConvPath::wgmma:
      return "wgmma";
    case ConvPath::halo:
      return "halo";
    case ConvPath::product:
      return "product";
    case ConvPath::gemm:
      return "gemm";
  }
  return "";
}

// "halo", "halo, estimate 2", "gemm 128x64", "wgmma 128x256 in 2 rounds", "halo behind copies".
inline std::string to_string(const ConvWay& way) {
  std::string text = concat(to_string(way.path));
  if (way.tile.rows > 0) text += concat(" ", way.tile.rows, "x", way.tile.columns);
  if (way.rounds > 1) text += concat(" in ", way.rounds, " rounds");
  if (way.rank > 0) text += concat(", estimate ", way.rank + 1);
  if (way.copied) text += " behind copies";
  return text;
}

// Backward to the input with a stride, which most taps of a pixel miss.
inline bool conv_is_divided(const ConvProblem& problem) {
  return problem.kind == ConvProblem::Kind::input &&
         (problem.window.stride[0] > 1 || problem.window.stride[1] > 1);
}

// Every path that can take a problem, in the order in which plan_conv_path() prefers them.
inline std::vector<ConvPath> conv_paths(const ConvProblem& problem) {
  std::vector<ConvPath> paths;
  const auto add = [&](bool takes, ConvPath path) {
    if (takes) paths.push_back(path);
  };
  add(conv_is_depthwise(problem), ConvPath::depthwise);
  add(conv_is_first(problem), ConvPath::first);
  add(conv_is_direct(problem.channels(), problem.taps()), ConvPath::direct);
  add(conv_is_shift(problem), ConvPath::shift);
  add(conv_takes_wgmma(problem), ConvPath::wgmma);
  add(conv_is_product(problem), ConvPath::product);
  add(conv_is_halo(problem), ConvPath::halo);
  paths.push_back(ConvPath::gemm);
  return paths;
}

// The tiles that a path has kernels for; one of 0 x 0 where it has no choice.
inline std::vector<ConvTile> conv_tiles(const ConvProblem& problem, ConvPath path) {
  const bool plain = problem.math != ConvMath::tensor;
  const bool weight = problem.kind == ConvProblem::Kind::weight;
  if (path == ConvPath::wgmma) {
    if (weight && plain) return {{64, 256}, {128, 256}};
    if (weight && problem.dtype == DType::f32) return {{128, 384}};
    std::vector<ConvTile> tiles{{64, 256}, {128, 128}};
    if (!plain) tiles.push_back({128, 256});
    return tiles;
  }
  if (path != ConvPath::gemm) return {{}};
  if (problem.math == ConvMath::f64) return {weight ? ConvTile{32, 48} : ConvTile{64, 32}};
  if (weight) return {{32, 96}, {64, 96}};
  std::vector<ConvTile> tiles{{128, 32}, {64, 64}};
  if (conv_is_divided(problem)) return tiles;
  tiles.push_back({128, 64});
  if (!plain) tiles.push_back({128, 128});
  return tiles;
}

// The tile that a path takes by itself.
inline ConvTile conv_own_tile(const ConvProblem& problem, ConvPath path) {
  const bool input = problem.kind == ConvProblem::Kind::input;
  const int64_t pixels_y = problem.n * problem.p * problem.q;
  const int64_t pixels = input ? problem.n * problem.h * problem.w : pixels_y;
  const int64_t columns = input ? problem.c : problem.k;
  const auto tile = [](WgmmaTile t) { return ConvTile{t.rows, t.columns}; };
  if (problem.kind == ConvProblem::Kind::weight) {
    const int64_t vector = 16 / size_of(problem.dtype), taps = problem.taps();
    if (path == ConvPath::wgmma) {
      return tile(
          plan_wgmma_wgrad(problem.dtype, problem.math, pixels_y, problem.k, taps * problem.c)
              .tile);
    }
    const int64_t depth = taps * ceil_div(problem.c, vector) * vector;
    return path == ConvPath::gemm
               ? plan_conv_wgrad(problem.math, pixels_y, problem.k, depth, problem.groups).tile
               : ConvTile{};
  }
  if (path == ConvPath::wgmma) return tile(plan_wgmma_gather(problem.math, pixels, columns));
  if (path != ConvPath::gemm) return {};
  return plan_conv_gather(problem.math, pixels, columns, problem.groups, conv_is_divided(problem));
}

inline constexpr int kMostHaloTiles = 4;  // that are tried

// The ways of the tensors as they are; each path's own tile comes before its others.
inline std::vector<ConvWay> conv_ways_in_place(const ConvProblem& problem) {
  std::vector<ConvWay> ways;
  for (const ConvPath path : conv_paths(problem)) {
    const ConvTile own = conv_own_tile(problem, path);
    ways.push_back({path, own});
    for (const ConvTile& tile : conv_tiles(problem, path)) {
      if (tile != own) ways.push_back({path, tile});
    }
    if (problem.kind != ConvProblem::Kind::weight && path == ConvPath::halo) {
      const auto plans = static_cast<int>(halo_gather_plans(problem).size());
      for (int rank = 1; rank < std::min(plans, kMostHaloTiles); ++rank) {
        ways.push_back({.path = path, .rank = rank});
      }
    }
    const bool slices = path == ConvPath::gemm || path == ConvPath::wgmma;
    if (problem.kind == ConvProblem::Kind::weight && slices) ways.push_back({path, own, 2});
  }
  return ways;
}

// All ways, the static choice first.
inline std::vector<ConvWay> conv_ways(const ConvProblem& problem) {
  std::vector<ConvWay> ways = conv_ways_in_place(problem);
  if (problem.ready) return ways;
  ConvProblem ready = problem;
  ready.ready = true;
  std::vector<ConvWay> behind;
  for (ConvWay way : conv_ways_in_place(ready)) {
    const ConvPath path = way.path;  // copies itself, or reads any layout
    if (path == ConvPath::gemm || path == ConvPath::wgmma || path == ConvPath::direct) continue;
    way.copied = true;
    behind.push_back(way);
  }
  ways.insert(plan_conv(problem).copied ? ways.begin() : ways.end(), behind.begin(), behind.end());
  return ways;
}

// What a choice is kept by: direction, dtype and arithmetic, shape, window, layout, bias. The
// extents of y follow from it. Hopper's products do from the card and the build: where those
// differ, so do the ways, and a choice among others is refused.
inline std::string conv_key(const ConvProblem& problem, bool bias) {
  using Kind = ConvProblem::Kind;
  const Window& window = problem.window;
  const std::string_view direction = problem.kind == Kind::forward ? "forward"
                                     : problem.kind == Kind::input ? "backward_input"
                                                                   : "backward_weight";
  const bool tf32 = problem.dtype == DType::f32 && problem.math == ConvMath::tensor;
  const auto pair = [](const Pair& two) { return concat(two[0], "x", two[1]); };
  return concat("conv2d_", direction, " ", tf32 ? "tf32" : to_string(problem.dtype), " n",
                problem.n, " c", problem.c * problem.groups, " ", problem.h, "x", problem.w, " k",
                problem.k * problem.groups, " kernel ", pair(window.kernel), " stride ",
                pair(window.stride), " padding ", pair(window.padding), " dilation ",
                pair(window.dilation), " groups ", problem.groups,
                problem.ready ? " nhwc" : " other layout", bias ? " bias" : "");
}

}  // namespace gradus
