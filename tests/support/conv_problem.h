// Problems of conv2d for tests of its launch choices.
#pragma once

#include "cuda/conv2d_problem.h"

namespace gradus {

using Kind = ConvProblem::Kind;
inline constexpr Kind kKinds[] = {Kind::forward, Kind::input, Kind::weight};
inline const Window kSame{.kernel = 3, .padding = 1};

// A channels-last problem of maps of h x w, or squares; c and k per group.
inline ConvProblem problem_of(Kind kind, DType dtype, int64_t n, int64_t c, int64_t k, Pair map,
                              const Window& window, int64_t groups = 1,
                              ConvMath math = ConvMath::tensor) {
  ConvProblem result{.kind = kind,
                     .dtype = dtype,
                     .math = math,
                     .n = n,
                     .groups = groups,
                     .c = c,
                     .h = map[0],
                     .w = map[1],
                     .k = k};
  result.window = window;
  result.p = window.positions(0, map[0]);
  result.q = window.positions(1, map[1]);
  result.ready = true;
  return result;
}

inline ConvProblem on_hopper(ConvProblem problem) {
  problem.wgmma = true;
  return problem;
}

}  // namespace gradus
