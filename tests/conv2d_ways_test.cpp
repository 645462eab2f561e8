// The ways of a convolution that can be chosen from, and the key of the choice.
#include "cuda/conv2d_ways.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/support/conv_problem.h"

namespace gradus {
namespace {

ConvProblem problem(Kind kind, DType dtype, ConvMath math, int64_t c, int64_t k, int64_t side,
                    const Window& window, int64_t groups = 1) {
  return on_hopper(problem_of(kind, dtype, 64, c, k, side, window, groups, math));
}

struct Mode {
  DType dtype;
  ConvMath math;
};
constexpr Mode kModes[] = {{DType::bf16, ConvMath::tensor},
                           {DType::f16, ConvMath::tensor},
                           {DType::f32, ConvMath::tensor},
                           {DType::f32, ConvMath::f32},
                           {DType::f64, ConvMath::f64}};

// Shapes of every path, in all directions and modes, in the fast layout and another.
std::vector<ConvProblem> problems() {
  const Window same{.kernel = 3, .padding = 1}, half{.kernel = 3, .stride = 2, .padding = 1};
  std::vector<ConvProblem> list;
  for (const Kind kind : kKinds) {
    for (const Mode& mode : kModes) {
      for (const bool fast : {true, false}) {
        const auto add = [&](int64_t c, int64_t k, const Window& window, int64_t groups = 1) {
          list.push_back(problem(kind, mode.dtype, mode.math, c, k, 28, window, groups));
          list.back().ready = list.back().wgmma = fast;
        };
        for (const Window& window : {same, half, Window{.kernel = 1}}) {
          add(1, 32, window);
          add(3, 64, window);
          add(5, 7, window);
          add(32, 32, window);
          add(64, 64, window);
          add(128, 256, window);
          add(16, 16, window, 2);
          add(1, 1, window, 64);
        }
      }
    }
  }
  return list;
}

TEST(ConvWays, TheStaticChoiceIsFirst) {
  std::set<ConvPath> first;
  for (const ConvProblem& problem : problems()) {
    const std::vector<ConvWay> ways = conv_ways(problem);
    const ConvWay plan = plan_conv(problem);
    EXPECT_EQ(ways[0].path, plan.path) << conv_key(problem, false);
    EXPECT_EQ(ways[0].copied, plan.copied) << conv_key(problem, false);
    EXPECT_EQ(ways[0].tile, conv_own_tile(problem, ways[0].path));
    EXPECT_EQ(ways[0].rounds, 1);
    first.insert(ways[0].path);
  }
  EXPECT_EQ(first.size(), 8u);  // every path was met
}

TEST(ConvWays, EachIsThereOnceAndHasKernels) {
  size_t most = 0;
  for (const ConvProblem& problem : problems()) {
    std::set<std::string> names;
    for (const ConvWay& way : conv_ways(problem)) {
      EXPECT_TRUE(names.insert(to_string(way)).second) << to_string(way);
      const std::vector<ConvTile> tiles = conv_tiles(problem, way.path);
      EXPECT_EQ(std::ranges::count(tiles, way.tile), 1)
          << to_string(way) << " of " << conv_key(problem, false);
    }
    EXPECT_TRUE(
        names.contains(to_string(ConvWay{ConvPath::gemm, conv_own_tile(problem, ConvPath::gemm)})));
    most = std::max(most, names.size());
  }
  EXPECT_GE(most, 8u);
  EXPECT_LE(most, 20u);  // each is timed
}

TEST(ConvWays, Names) {
  EXPECT_EQ(to_string(ConvWay{ConvPath::halo}), "halo");
  EXPECT_EQ(to_string(ConvWay{.path = ConvPath::halo, .copied = true}), "halo behind copies");
  EXPECT_EQ(to_string(ConvWay{ConvPath::gemm, {128, 64}}), "gemm 128x64");
  EXPECT_EQ(to_string(ConvWay{ConvPath::wgmma, {128, 256}, 2}), "wgmma 128x256 in 2 rounds");
}

TEST(ConvWays, OfAPlainLayer) {
  std::vector<std::string> names;
  const Window same{.kernel = 3, .padding = 1};
  for (const ConvWay& way :
       conv_ways(problem(Kind::forward, DType::bf16, ConvMath::tensor, 64, 64, 28, same))) {
    names.push_back(to_string(way));
  }
  EXPECT_EQ(names, (std::vector<std::string>{"shift", "wgmma 64x256", "wgmma 128x128",
                                             "wgmma 128x256", "halo", "halo, estimate 2",
                                             "halo, estimate 3", "halo, estimate 4", "gemm 64x64",
                                             "gemm 128x32", "gemm 128x64", "gemm 128x128"}));
}

// Tensors of another layout have the ways that need no copies, and those behind copies.
TEST(ConvWays, OfAnotherLayout) {
  const Window same{.kernel = 3, .padding = 1};
  const auto names = [&](const ConvProblem& problem) {
    std::vector<std::string> list;
    for (const ConvWay& way : conv_ways(problem)) list.push_back(to_string(way));
    return list;
  };
  ConvProblem p = problem(Kind::forward, DType::bf16, ConvMath::tensor, 32, 32, 28, same);
  p.ready = false;
  EXPECT_EQ(names(p),
            (std::vector<std::string>{
                "shift behind copies", "halo behind copies", "halo, estimate 2 behind copies",
                "halo, estimate 3 behind copies", "halo, estimate 4 behind copies", "gemm 128x32",
                "gemm 64x64", "gemm 128x64", "gemm 128x128"}));
  p = problem(Kind::forward, DType::bf16, ConvMath::tensor, 1, 32, 28, same);
  p.ready = false;
  const std::vector<std::string> first = names(p);
  EXPECT_EQ(first.front(), "direct");
  EXPECT_EQ(first.back(), "first behind copies");
}

TEST(ConvWays, AKeySaysEverythingThatMatters) {
  ConvProblem p = problem(Kind::input, DType::bf16, ConvMath::tensor, 8, 16, 28,
                          {.kernel = {3, 5}, .stride = {1, 2}, .padding = {1, 2}}, 2);
  p.w = 30;
  EXPECT_EQ(conv_key(p, false),
            "conv2d_backward_input bf16 n64 c16 28x30 k32 kernel 3x5 stride 1x2 padding 1x2 "
            "dilation 1x1 groups 2 nhwc");
  std::set<std::string> keys{conv_key(p, false), conv_key(p, true)};
  size_t count = 2;
  const auto differs = [&](auto&& change) {
    ConvProblem other = p;
    change(other);
    EXPECT_TRUE(keys.insert(conv_key(other, false)).second) << conv_key(other, false);
    ++count;
  };
  differs([](ConvProblem& o) { o.kind = Kind::forward; });
  differs([](ConvProblem& o) { o.kind = Kind::weight; });
  differs([](ConvProblem& o) { o.dtype = DType::f16; });
  differs([](ConvProblem& o) { o.dtype = DType::f32; });
  differs([](ConvProblem& o) { o.dtype = DType::f32, o.math = ConvMath::f32; });
  differs([](ConvProblem& o) { o.n = 63; });
  differs([](ConvProblem& o) { o.c = 7; });
  differs([](ConvProblem& o) { o.h = 30; });
  differs([](ConvProblem& o) { o.w = 28; });
  differs([](ConvProblem& o) { o.k = 15; });
  differs([](ConvProblem& o) { o.groups = 1, o.c = 16, o.k = 32; });
  differs([](ConvProblem& o) { o.window.kernel = {5, 3}; });
  differs([](ConvProblem& o) { o.window.stride = {2, 1}; });
  differs([](ConvProblem& o) { o.window.padding = {2, 1}; });
  differs([](ConvProblem& o) { o.window.dilation = {1, 2}; });
  differs([](ConvProblem& o) { o.ready = false; });
  EXPECT_EQ(keys.size(), count);
}

}  // namespace
}  // namespace gradus
