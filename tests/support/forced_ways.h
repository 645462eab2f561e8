// Tables by which conv2d on the GPU takes the ways that a test names; nothing is timed.
#pragma once

#include <algorithm>
#include <span>

#include "cuda/autotune.h"
#include "cuda/conv2d_ways.h"
#include "cuda/launch_kernel.cuh"
#include "tests/support/conv_problem.h"
#include "tests/support/conv_results.h"

namespace gradus {

// What a convolution in `format` asks a table for, in the order of `kinds`.
inline std::vector<ConvProblem> conv_problems(const ConvShapes& shapes, const ConvMode& mode,
                                              MemoryFormat format,
                                              std::span<const Kind> kinds = kKinds) {
  const Shape &x = shapes.x, &w = shapes.w;
  const auto& [stride, padding, dilation, groups] = shapes.options;
  const ConvMath math = conv_math(mode.dtype, mode.precision == MatmulPrecision::tf32);
  std::vector<ConvProblem> problems;
  for (const Kind kind : kinds) {
    ConvProblem problem = problem_of(kind, mode.dtype, x[0], w[1], w[0] / groups, {x[2], x[3]},
                                     {{w[2], w[3]}, stride, padding, dilation}, groups, math);
    problem.ready = format == MemoryFormat::channels_last;
    problem.wgmma = cuda().has_warpgroup_products();
    problem.shared = std::min<int64_t>(shared_limit(cuda()), kMostShared);
    problems.push_back(problem);
  }
  return problems;
}

inline size_t most_ways(std::span<const ConvProblem> problems) {
  size_t most = 0;
  for (const ConvProblem& problem : problems) most = std::max(most, conv_ways(problem).size());
  return most;
}

// A table with each problem's i-th way, or its last, for launches with a bias and with its gradient
// wanted. What has one way only asks no table.
inline Autotune forced_ways(std::span<const ConvProblem> problems, size_t i) {
  Autotune table(false);
  for (const ConvProblem& problem : problems) {
    const std::vector<ConvWay> ways = conv_ways(problem);
    if (ways.size() < 2) continue;
    TunedChoice choice{to_string(ways[std::min(i, ways.size() - 1)]), {}};
    for (const ConvWay& way : ways) choice.us[to_string(way)] = 1.0;
    const bool bias = problem.kind != Kind::input;
    table.set(autotune_card(cuda().info()), conv_key(problem, bias), choice);
  }
  return table;
}

// Expects that every choice of the table was taken, among the ways that the launch has, and that no
// launch asked for another.
inline void expect_obeyed(const Autotune& table) {
  size_t choices = 0;
  for (const auto& [card, of_card] : table.cards()) choices += of_card.size();
  EXPECT_EQ(table.replayed().size(), choices);
  EXPECT_EQ(table.missing(), Autotune::Problems{});
  EXPECT_EQ(table.outdated(), Autotune::Problems{});
}

}  // namespace gradus
