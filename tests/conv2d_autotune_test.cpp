// conv2d by a table of choices, on the GPU: every way computes the same, the table is obeyed, and
// nothing is timed while a graph is recorded.
#include <algorithm>
#include <cmath>

#include "core/autotune.h"
#include "core/generator.h"
#include "core/trace.h"
#include "nn/capture.h"
#include "tests/support/expect_error.h"
#include "tests/support/forced_ways.h"

namespace gradus {
namespace {

struct Problem {
  const char* name;
  ConvShapes shapes;
};
void PrintTo(const Problem& problem, std::ostream* out) { *out << problem.name; }

const Problem kProblems[] = {
    {"From1To32", {{3, 1, 17, 14}, {32, 1, 3, 3}, {.padding = 1}}},
    {"From3To64", {{2, 3, 15, 18}, {64, 3, 3, 3}, {.padding = 1}}},
    {"From32To32", {{3, 32, 19, 28}, {32, 32, 3, 3}, {.padding = 1}}},
    {"Kernel5x3", {{2, 24, 19, 21}, {40, 24, 5, 3}, {.stride = 2, .padding = {1, 0}}}},
    {"From64To64", {{5, 64, 16, 15}, {64, 64, 3, 3}, {.padding = 1}}},
    {"From128To136", {{8, 128, 13, 13}, {136, 128, 3, 3}, {.padding = 1}}},
    {"From128To192", {{6, 128, 33, 31}, {192, 128, 3, 3}, {.stride = 2, .padding = 1}}},
    {"Kernel1x1", {{4, 64, 32, 32}, {72, 64, 1, 1}}},
    {"Depthwise", {{2, 40, 13, 18}, {40, 1, 3, 3}, {.padding = 1, .groups = 40}}},
    {"TwoGroups", {{2, 32, 12, 13}, {16, 16, 3, 3}, {.padding = 1, .groups = 2}}},
};

constexpr MemoryFormat kFormats[] = {MemoryFormat::channels_last, MemoryFormat::contiguous};

class Conv2dAutotuneCuda : public test::GpuTest {};
class Conv2dAutotuneWaysCuda : public Conv2dAutotuneCuda,
                               public testing::WithParamInterface<Problem> {};
INSTANTIATE_TEST_SUITE_P(Problems, Conv2dAutotuneWaysCuda, testing::ValuesIn(kProblems),
                         [](const auto& info) { return info.param.name; });

using ProblemInMode = std::tuple<Problem, ConvMode>;
class Conv2dAutotuneModesCuda : public Conv2dAutotuneCuda,
                                public testing::WithParamInterface<ProblemInMode> {};
INSTANTIATE_TEST_SUITE_P(Problems, Conv2dAutotuneModesCuda,
                         testing::Combine(testing::ValuesIn(kProblems),
                                          testing::ValuesIn(kConvModes)),
                         [](const auto& info) {
                           return concat(std::get<0>(info.param).name, "_",
                                         std::get<1>(info.param).name);
                         });

TEST_P(Conv2dAutotuneModesCuda, EveryWayComputesTheSame) {
  const auto& [problem, mode] = GetParam();
  const ConvShapes& shapes = problem.shapes;
  const MatmulPrecisionGuard precision(mode.precision);
  size_t tried = 0;
  for (const MemoryFormat format : kFormats) {
    const std::vector<Tensor> wanted = conv_results(shapes, DType::f64, format);
    const std::vector<ConvProblem> asked = conv_problems(shapes, mode, format);
    const size_t ways = most_ways(asked);
    EXPECT_GT(ways, 1u);  // the tables hold choices
    for (size_t i = 0; i < ways; ++i, ++tried) {
      SCOPED_TRACE(concat(format, ", way ", i));
      Autotune table = forced_ways(asked, i);
      const AutotuneGuard guard(table);
      expect_exactly(conv_results(shapes, mode.dtype, format), wanted);
      expect_obeyed(table);
    }
  }
  const bool strict = mode.dtype == DType::f32 && mode.precision == MatmulPrecision::strict;
  EXPECT_GE(tried, strict ? 6u : 8u);  // 300 of all problems in all modes
}

TEST_F(Conv2dAutotuneCuda, TheSameTableGivesTheSameBits) {
  const auto run = [] {
    const TensorOptions half{.dtype = DType::bf16, .device = kCuda};
    Generator same(kCuda, 3);
    const Tensor x = randn({32, 64, 20, 20}, half, &same).contiguous(MemoryFormat::channels_last);
    const Tensor w = randn({64, 64, 3, 3}, half, &same).set_requires_grad(true);
    const Tensor y = conv2d(x, w, {}, {.padding = 1});
    y.backward(x);
    return w.grad().to_vector<double>();
  };
  Autotune first;
  std::vector<double> measured;
  {
    const AutotuneGuard guard(first);
    measured = run();
  }
  for (size_t i = 0; i < 3; ++i) {
    Autotune table(false);
    for (const auto& [card, choices] : first.cards()) {
      for (const auto& [key, choice] : choices) table.set(card, key, choice);
    }
    const AutotuneGuard guard(table);
    EXPECT_EQ(run(), measured);
  }
}

TEST_F(Conv2dAutotuneCuda, NothingIsTimedWhileAGraphIsRecorded) {
  const TensorOptions f32{.device = kCuda};
  const Tensor x = Tensor::ones({8, 32, 16, 16}, f32).contiguous(MemoryFormat::channels_last);
  const Tensor w = Tensor::ones({32, 32, 3, 3}, f32);
  Autotune table;
  Tensor y;
  bool asks = false;
  nn::CapturedStep step(kCuda, [&] {
    if (asks) {
      const AutotuneGuard guard(table);
      y = conv2d(x, w);
    } else {
      y = conv2d(x, w);
    }
  });
  for (int i = 0; i < nn::CapturedStep::kWarmUp; ++i) step.run();
  asks = true;
  step.run();  // records and replays
  ASSERT_TRUE(step.captured());
  EXPECT_TRUE(table.measured().empty());
  EXPECT_EQ(table.missing().size(), 1u);
  EXPECT_EQ(y.to_vector<float>(), std::vector<float>(static_cast<size_t>(y.numel()), 288.0f));
}

TEST_F(Conv2dAutotuneCuda, ATraceDoesNotSeeWhatIsTried) {
  const TensorOptions f32{.device = kCuda};
  const Tensor x = Tensor::ones({8, 32, 16, 16}, f32), w = Tensor::ones({32, 32, 3, 3}, f32);
  Autotune table;
  const AutotuneGuard guard(table);
  const Trace trace;
  conv2d(x, w);
  EXPECT_EQ(table.measured().size(), 1u);
  EXPECT_EQ(std::ranges::count(trace.records(), "conv2d_forward", &TraceRecord::name), 1);
  EXPECT_LE(trace.records().size(), 3u);
}

TEST_F(Conv2dAutotuneCuda, AWayOfAnotherVersionIsRefused) {
  const TensorOptions f32{.device = kCuda};
  const Tensor x = Tensor::ones({8, 32, 16, 16}, f32), w = Tensor::ones({32, 32, 3, 3}, f32);
  Autotune measured;
  {
    const AutotuneGuard guard(measured);
    conv2d(x, w);
  }
  Autotune table(false);
  for (const auto& [card, choices] : measured.cards()) {
    for (const auto& [key, choice] : choices) table.set(card, key, {"of old", {{"of old", 1.0}}});
  }
  const AutotuneGuard guard(table);
  EXPECT_ERROR(conv2d(x, w), ErrorCode::io, "is to be computed by 'of old'", "gemm");
}

// NCHW: the copies are seen, with their bytes, and are not among the fewest of the convolution.
TEST_F(Conv2dAutotuneCuda, CopiesBetweenLayoutsAreSeenInATrace) {
  const TensorOptions half{.dtype = DType::bf16, .device = kCuda};
  const Tensor x = Tensor::ones({8, 32, 16, 16}, half), w = Tensor::ones({32, 32, 3, 3}, half);
  const auto layouts = [&](const Tensor& input) {
    const Trace trace;
    conv2d(input, w, {}, {.padding = 1});
    std::vector<int64_t> bytes;
    for (const TraceRecord& record : trace.records()) {
      EXPECT_EQ(record.part, record.name == "conv2d_layout") << record.name;
      if (record.part) bytes.push_back(record.bytes);
    }
    EXPECT_EQ(trace.records().back().name, "conv2d_forward");
    return bytes;
  };
  EXPECT_EQ(layouts(x), (std::vector<int64_t>{2 * x.nbytes(), 2 * x.nbytes()}));
  EXPECT_EQ(layouts(x.contiguous(MemoryFormat::channels_last)), std::vector<int64_t>{});
}

// The gradient of a bias is a sum of dy as it is, also where products are rounded to TF32.
TEST_F(Conv2dAutotuneCuda, BiasGradientsAreNotRounded) {
  const double value = 1 + std::ldexp(1.0, -12);
  const ConvShapes problems[] = {{{4, 1, 16, 16}, {32, 1, 3, 3}, {.padding = 1}},
                                 {{4, 32, 16, 16}, {32, 32, 3, 3}, {.padding = 1}},
                                 {{4, 32, 16, 16}, {32, 1, 3, 3}, {.padding = 1, .groups = 32}},
                                 {{4, 128, 16, 16}, {128, 128, 3, 3}, {.padding = 1}}};
  const MatmulPrecisionGuard precision(MatmulPrecision::tf32);
  for (const ConvShapes& problem : problems) {
    const TensorOptions f32{.device = kCuda, .format = MemoryFormat::channels_last};
    const Tensor x = Tensor::ones(problem.x, f32);
    const Tensor w = Tensor::ones(problem.w, {.device = kCuda}).set_requires_grad(true);
    const Tensor bias = Tensor::ones({problem.w[0]}, {.device = kCuda}).set_requires_grad(true);
    const Tensor y = conv2d(x, w, bias, problem.options);
    Tensor dy = Tensor::empty(y.shape(), f32);
    dy.fill_(value);
    y.backward(dy);
    for (const float sum : bias.grad().to_vector<float>()) ASSERT_EQ(sum, 1024 * value);
  }
}

// dbias in `dtype`, of values whose sums depend on their order; with the gradient of the weights
// wanted or not.
std::vector<double> bias_gradient(const ConvShapes& problem, DType dtype, MemoryFormat format,
                                  bool weights) {
  Generator same(kCuda, 5);
  const TensorOptions options{.dtype = dtype, .device = kCuda};
  const Tensor x = randn(problem.x, options, &same).contiguous(format);
  const Tensor w = randn(problem.w, options, &same).set_requires_grad(weights);
  const Tensor bias = Tensor::ones({problem.w[0]}, {.dtype = acc_dtype(dtype), .device = kCuda})
                          .set_requires_grad(true);
  const Tensor y = conv2d(x, w, bias, problem.options);
  y.backward(randn(y.shape(), options, &same).contiguous(format));
  return bias.grad().to_vector<double>();
}

TEST_P(Conv2dAutotuneWaysCuda, BiasGradientsHaveTheSameBitsWithoutThoseOfTheWeights) {
  const ConvShapes& shapes = GetParam().shapes;
  const Kind kinds[] = {Kind::forward, Kind::weight};
  std::vector<ConvMode> modes(std::begin(kConvModes), std::end(kConvModes));
  modes.push_back({"f64", DType::f64});
  for (const MemoryFormat format : kFormats) {
    for (const ConvMode& mode : modes) {
      SCOPED_TRACE(concat(mode.name, " ", format));
      const MatmulPrecisionGuard precision(mode.precision);
      EXPECT_EQ(bias_gradient(shapes, mode.dtype, format, false),
                bias_gradient(shapes, mode.dtype, format, true));
      const std::vector<ConvProblem> asked = conv_problems(shapes, mode, format, kinds);
      const size_t ways = conv_ways(asked.back()).size();  // of the weights
      EXPECT_GT(ways, 1u);
      for (size_t i = 0; i < ways; ++i) {
        SCOPED_TRACE(concat("way ", i));
        const auto by_table = [&](bool weights) {  // a table of its own, which it has to ask
          Autotune table = forced_ways(asked, i);
          const AutotuneGuard guard(table);
          const std::vector<double> dbias = bias_gradient(shapes, mode.dtype, format, weights);
          expect_obeyed(table);
          return dbias;
        };
        EXPECT_EQ(by_table(false), by_table(true));
      }
    }
  }
}

}  // namespace
}  // namespace gradus
