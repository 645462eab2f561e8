// What time_layer() runs, and what it says of it.
#include "nn/compare/layer_time.h"

#include <gtest/gtest.h>

#include <set>

#include "autograd/ops/activation.h"
#include "core/generator.h"
#include "examples/cli/layer_times.h"

namespace gradus {
namespace {

TimedLayer counted(int& forward_calls) {
  TimedLayer layer{.forward =
                       [&](std::span<const Tensor> in) {
                         ++forward_calls;
                         return std::vector{relu(in[0])};
                       },
                   .operands = {},
                   .upstream =
                       [](std::span<const Tensor> outputs) {
                         return std::vector{Tensor::ones(outputs[0].shape())};
                       }};
  for (int i = 0; i < 3; ++i) layer.operands.push_back({randn({64}).set_requires_grad(true)});
  return layer;
}

TEST(LayerTime, WithoutRepeatsEachDirectionRunsOnce) {
  int forward_calls = 0;
  const LayerTiming timing = time_layer(counted(forward_calls), kCpu, 0);
  EXPECT_EQ(forward_calls, 1);
  EXPECT_EQ(timing.forward.launches.size(), 1U);
  ASSERT_TRUE(timing.backward.has_value());
  EXPECT_EQ(timing.backward->launches.size(), 1U);
  EXPECT_EQ(timing.forward.seconds, 0);
}

// A cold case of 1 MB that counts its calls and its copies; its result is of `factor` MB.
OpCase counted_case(int64_t factor, int& calls, std::set<const Storage*>& copies) {
  OpCase result;
  result.inputs = {{.name = "x", .shape = {1, 1 << 18}}};
  result.forward = [factor, &calls, &copies](std::span<const Tensor> in) {
    ++calls;
    copies.insert(in[0].storage().get());
    return in[0].expand({factor, 1 << 18});
  };
  return result;
}

TEST(LayerTime, WithoutRepeatsAColdCaseRunsOnce) {
  int calls = 0;
  std::set<const Storage*> copies;
  cli::time_case(counted_case(1, calls, copies), DType::f32, kCpu, true, 0);
  EXPECT_EQ(calls, 1);
}

TEST(LayerTime, ColdCopiesCountWithTheirResults) {
  int calls = 0;
  std::set<const Storage*> small, large;
  cli::time_case(counted_case(1, calls, small), DType::f32, kCpu, true, 1, 0);
  EXPECT_EQ(small.size(), 200u);
  cli::time_case(counted_case(99, calls, large), DType::f32, kCpu, true, 1, 0);
  EXPECT_EQ(large.size(), 4u);
}

TEST(LayerTime, EveryOperandHasItsTurn) {
  int forward_calls = 0;
  const LayerTiming timing = time_layer(counted(forward_calls), kCpu, 1, 0);
  EXPECT_GT(forward_calls, 3);
  EXPECT_EQ(forward_calls % 3, 0);
  EXPECT_GT(timing.forward.seconds, 0);
  EXPECT_GT(timing.backward->seconds, 0);
}

}  // namespace
}  // namespace gradus
