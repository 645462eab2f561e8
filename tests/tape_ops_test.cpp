// What every op owes the tape, checked on its cases: no leak, one clear error on a second backward,
// exact doubling of retained gradients, and no gradient from data that was changed meanwhile.
#include <gtest/gtest.h>

#include "cpu/context.h"
#include "tests/support/expect_error.h"
#include "tests/support/op_modes.h"

namespace gradus {
namespace {

std::vector<std::string> ops() { return ops_with_cases(); }

class TapeOps : public testing::TestWithParam<std::string> {
 protected:
  // The differentiable cases that are small enough to be run many times.
  std::vector<OpCase> cases() const {
    std::vector<OpCase> list = test_cases_of(GetParam());
    std::erase_if(list, [](const OpCase& c) {
      int64_t values = 0;
      for (const CaseInput& input : c.inputs) values += input.shape.numel();
      return !c.reference_backward || values > 3000;
    });
    return list;
  }
};
INSTANTIATE_TEST_SUITE_P(Every, TapeOps, testing::ValuesIn(ops()),
                         [](const auto& info) { return info.param; });

Tensor upstream_of(const Tensor& y, uint64_t seed) {
  return Tensor::from_vector(draw_upstream(y.shape(), y.dtype(), seed).data, y.shape(),
                             {.dtype = y.dtype()});
}

std::vector<std::vector<double>> gradients(const std::vector<Tensor>& inputs) {
  std::vector<std::vector<double>> list;
  for (const Tensor& x : inputs) {
    if (x.requires_grad()) list.push_back(x.grad().to_vector<double>());
  }
  return list;
}

// Fault D079.
TEST_P(TapeOps, GraphsAreFreedWithAndWithoutBackward) {
  for (const OpCase& c : cases()) {
    SCOPED_TRACE(c.name);
    const auto arrays = draw_inputs(c, DType::f32, 1);
    auto inputs = make_inputs(c, arrays, DType::f32, kCpu);
    const auto live = [] {
      const AllocatorStats stats = cpu().allocator()->stats();
      return std::pair(stats.blocks_in_use, stats.bytes_in_use);
    };
    const auto before = live();
    c.forward(inputs);
    EXPECT_EQ(live(), before) << "after a forward";
    {
      const Tensor y = c.forward(inputs);
      y.backward(upstream_of(y, 2));
    }
    for (Tensor& x : inputs) x.zero_grad();
    EXPECT_EQ(live(), before) << "after a backward";
  }
}

// Fault D080.
TEST_P(TapeOps, SecondBackwardIsOneClearError) {
  for (const OpCase& c : cases()) {
    SCOPED_TRACE(c.name);
    const auto inputs = make_inputs(c, draw_inputs(c, DType::f64, 3), DType::f64, kCpu);
    const Tensor y = c.forward(inputs), dy = upstream_of(y, 4);
    y.backward(dy);
    EXPECT_ERROR(y.backward(dy), ErrorCode::autograd,
                 "backward reached this operation a second time, but its graph was freed");
  }
}

TEST_P(TapeOps, RetainedGradientsDouble) {
  for (const OpCase& c : cases()) {
    SCOPED_TRACE(c.name);
    const auto inputs = make_inputs(c, draw_inputs(c, DType::f64, 3), DType::f64, kCpu);
    const Tensor y = c.forward(inputs), dy = upstream_of(y, 4);
    y.backward(dy, true);
    auto want = gradients(inputs);
    y.backward(dy);
    for (auto& values : want) {
      for (double& value : values) value *= 2;
    }
    EXPECT_EQ(gradients(inputs), want);
  }
}

// Fault D077: an input or the result is changed in place after the forward.
TEST_P(TapeOps, ChangedDataNeverGivesAGradient) {
  for (const OpCase& c : cases()) {
    SCOPED_TRACE(c.name);
    const auto arrays = draw_inputs(c, DType::f64, 5);
    auto inputs = make_inputs(c, arrays, DType::f64, kCpu);
    Tensor y = c.forward(inputs);
    const Tensor dy = upstream_of(y, 6);
    y.backward(dy);
    const auto want = gradients(inputs);
    for (size_t changed = 0; changed <= inputs.size(); ++changed) {
      inputs = make_inputs(c, arrays, DType::f64, kCpu);
      y = c.forward(inputs);
      (changed < inputs.size() ? inputs[changed] : y).detach().fill_(0);
      try {
        y.backward(dy);
        EXPECT_EQ(gradients(inputs), want) << "tensor " << changed;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::autograd);
        EXPECT_NE(std::string(error.what()).find("was changed in place: version"),
                  std::string::npos)
            << error.what();
      }
    }
  }
}

// Each differentiable input alone gets the gradient that it gets among the others.
TEST_P(TapeOps, FrozenInputs) {
  for (const OpCase& c : cases()) {
    SCOPED_TRACE(c.name);
    const auto arrays = draw_inputs(c, DType::f64, 7);
    auto inputs = make_inputs(c, arrays, DType::f64, kCpu);
    Tensor y = c.forward(inputs);
    const Tensor dy = upstream_of(y, 8);
    y.backward(dy);
    const std::vector<Tensor> all = inputs;
    for (unsigned mask = 0; mask < 1u << all.size(); ++mask) {
      inputs = make_inputs(c, arrays, DType::f64, kCpu);
      bool any = false;
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (!inputs[i].requires_grad()) continue;
        inputs[i].set_requires_grad(mask >> i & 1);
        any = any || (mask >> i & 1) != 0;
      }
      y = c.forward(inputs);
      EXPECT_EQ(y.requires_grad(), any);
      if (!any) continue;
      y.backward(dy);
      for (size_t i = 0; i < inputs.size(); ++i) {
        EXPECT_EQ(inputs[i].grad().defined(), inputs[i].requires_grad()) << i;
        if (inputs[i].grad().defined()) {
          EXPECT_EQ(inputs[i].grad().to_vector<double>(), all[i].grad().to_vector<double>()) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace gradus
