// What every op owes the tape, checked on its cases: no leak, one clear error on a second backward,
// exact doubling of retained gradients, and no gradient from data that was changed meanwhile.
#include <gtest/gtest.h>

#include "autograd/ops/arithmetic.h"
#include "core/launch.h"
#include "tests/support/expect_error.h"
#include "tests/support/gpu.h"
#include "tests/support/op_modes.h"

namespace gradus {
namespace {

struct OpOn {
  std::string op;
  Device device;
};

void PrintTo(const OpOn& on, std::ostream* out) { *out << on.op << " on " << to_string(on.device); }

std::vector<OpOn> every_op() {
  std::vector<OpOn> list;
  for (const std::string& op : ops_with_cases()) {
    list.push_back({op, kCpu});
    list.push_back({op, kCuda});
  }
  return list;
}

class TapeOps : public testing::TestWithParam<OpOn> {
 protected:
  void SetUp() override { GRADUS_SKIP_WITHOUT(GetParam().device); }

  std::vector<Tensor> inputs_of(const OpCase& c, std::span<const ref::Array> arrays,
                                DType dtype = DType::f64) const {
    return make_inputs(c, arrays, dtype, GetParam().device);
  }

  // The differentiable cases that are small enough to be run many times.
  std::vector<OpCase> cases() const {
    std::vector<OpCase> list = test_cases_of(GetParam().op);
    std::erase_if(list, [](const OpCase& c) {
      int64_t values = 0;
      for (const CaseInput& input : c.inputs) values += input.shape.numel();
      return !c.reference_backward || values > 3000;
    });
    return list;
  }
};
INSTANTIATE_TEST_SUITE_P(Every, TapeOps, testing::ValuesIn(every_op()), [](const auto& info) {
  return info.param.op + (info.param.device == kCpu ? "_Cpu" : "_Cuda");
});

Tensor upstream_of(const Tensor& y, uint64_t seed) {
  return Tensor::from_vector(draw_upstream(y.shape(), y.dtype(), seed).data, y.shape(),
                             {.dtype = y.dtype(), .device = y.device()});
}

// Blocks and bytes that tensors hold on the device.
std::pair<int64_t, int64_t> live(Device device) {
  return with_backend(device, [](auto& backend) {
    const AllocatorStats stats = allocator_of(backend)->stats();
    return std::pair(stats.blocks_in_use, stats.bytes_in_use);
  });
}

std::vector<std::vector<double>> gradients(const std::vector<Tensor>& inputs) {
  std::vector<std::vector<double>> list;
  for (const Tensor& x : inputs) {
    if (x.requires_grad()) list.push_back(x.grad().to_vector<double>());
  }
  return list;
}

TEST_P(TapeOps, D079_GraphsAreFreedWithAndWithoutBackward) {
  for (const OpCase& c : cases()) {
    SCOPED_TRACE(c.name);
    const auto arrays = draw_inputs(c, DType::f32, 1);
    auto inputs = inputs_of(c, arrays, DType::f32);
    const Device device = GetParam().device;
    const auto step = [&] {
      {
        const Tensor y = c.forward(inputs);
        y.backward(upstream_of(y, 2));
      }
      for (Tensor& x : inputs) x.zero_grad();
    };
    step();  // a workspace that stays is made once
    const auto before = live(device);
    c.forward(inputs);
    EXPECT_EQ(live(device), before) << "after a forward";
    step();
    EXPECT_EQ(live(device), before) << "after a backward";
  }
}

TEST_P(TapeOps, D080_SecondBackwardIsOneClearError) {
  for (const OpCase& c : cases()) {
    SCOPED_TRACE(c.name);
    const auto inputs = inputs_of(c, draw_inputs(c, DType::f64, 3));
    const Tensor y = c.forward(inputs), dy = upstream_of(y, 4);
    y.backward(dy);
    EXPECT_ERROR(y.backward(dy), ErrorCode::autograd,
                 "backward reached this operation a second time, but its graph was freed");
  }
}

TEST_P(TapeOps, D080_RetainedGradientsDouble) {
  for (const OpCase& c : cases()) {
    SCOPED_TRACE(c.name);
    const auto inputs = inputs_of(c, draw_inputs(c, DType::f64, 3));
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

// Gradients add up over calls until they are cleared.
TEST_P(TapeOps, D025_GradientsAddUp) {
  for (const OpCase& c : cases()) {
    SCOPED_TRACE(c.name);
    const auto inputs = inputs_of(c, draw_inputs(c, DType::f64, 3));
    std::vector<std::vector<double>> want;
    for (int call = 0; call < 3; ++call) {
      const Tensor y = c.forward(inputs);
      y.backward(upstream_of(y, 4));
      if (call == 0) want = gradients(inputs);
    }
    for (auto& values : want) {
      for (double& value : values) value *= 3;
    }
    EXPECT_EQ(gradients(inputs), want);
  }
}

// The upstream gradient keeps its values, and nothing depends on whether somebody else holds it.
TEST_P(TapeOps, D024_UpstreamIsOnlyRead) {
  for (const OpCase& c : cases()) {
    SCOPED_TRACE(c.name);
    const auto arrays = draw_inputs(c, DType::f64, 11);
    const auto held = inputs_of(c, arrays), alone = inputs_of(c, arrays);
    Tensor y = c.forward(held);
    const Tensor dy = upstream_of(y, 12);
    const std::vector<double> before = dy.to_vector<double>();
    y.backward(dy);
    EXPECT_EQ(dy.to_vector<double>(), before);
    y = c.forward(alone);
    y.backward(upstream_of(y, 12));
    EXPECT_EQ(gradients(alone), gradients(held));
  }
}

// An op between others passes on what comes down: whatever path its forward takes is recorded.
TEST_P(TapeOps, D028_LayersBeforeLearn) {
  for (const OpCase& c : cases()) {
    SCOPED_TRACE(c.name);
    const auto arrays = draw_inputs(c, DType::f64, 9);
    const auto alone = inputs_of(c, arrays), leaves = inputs_of(c, arrays);
    Tensor y = c.forward(alone);
    const Tensor dy = upstream_of(y, 10);
    y.backward(dy);
    std::vector<Tensor> results = leaves;
    for (Tensor& x : results) {
      if (x.requires_grad()) x = x * 1.0;
    }
    y = c.forward(results);
    ASSERT_TRUE(y.requires_grad());
    (y * 1.0).backward(dy);
    EXPECT_EQ(gradients(leaves), gradients(alone));
  }
}

// An input or the result is changed in place after the forward.
TEST_P(TapeOps, D077_ChangedDataNeverGivesAGradient) {
  for (const OpCase& c : cases()) {
    SCOPED_TRACE(c.name);
    const auto arrays = draw_inputs(c, DType::f64, 5);
    auto inputs = inputs_of(c, arrays);
    Tensor y = c.forward(inputs);
    const Tensor dy = upstream_of(y, 6);
    y.backward(dy);
    const auto want = gradients(inputs);
    for (size_t changed = 0; changed <= inputs.size(); ++changed) {
      inputs = inputs_of(c, arrays);
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
TEST_P(TapeOps, D027_FrozenInputs) {
  for (const OpCase& c : cases()) {
    SCOPED_TRACE(c.name);
    const auto arrays = draw_inputs(c, DType::f64, 7);
    auto inputs = inputs_of(c, arrays);
    Tensor y = c.forward(inputs);
    const Tensor dy = upstream_of(y, 8);
    y.backward(dy);
    const std::vector<Tensor> all = inputs;
    for (unsigned mask = 0; mask < 1u << all.size(); ++mask) {
      inputs = inputs_of(c, arrays);
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
