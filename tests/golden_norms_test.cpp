// Normalizations over groups and rows against PyTorch.
#include "autograd/ops/group_norm.h"
#include "autograd/ops/instance_norm.h"
#include "autograd/ops/layer_norm.h"
#include "autograd/ops/rms_norm.h"
#include "tests/support/golden_op.h"

namespace gradus {
namespace {

class GoldenNorms : public GoldenTest {
 protected:
  // The last axes of x that a case normalizes over.
  static Shape suffix(const GoldenInputs& in) {
    const Shape shape = in["x"].shape();
    Shape result;
    for (int axis = shape.rank() - static_cast<int>(in.integer("normalized_axes"));
         axis < shape.rank(); ++axis) {
      result.append(shape[axis]);
    }
    return result;
  }
};
GRADUS_GOLDEN_ON_BOTH(GoldenNorms);

TEST_P(GoldenNorms, LayerNorm) {
  check("layer_norm", 6, [](const GoldenInputs& in) {
    return layer_norm(in["x"], suffix(in), in["gamma"], in["beta"], in.number("eps"));
  });
}

TEST_P(GoldenNorms, RmsNorm) {
  check("rms_norm", 5, [](const GoldenInputs& in) {
    return rms_norm(in["x"], suffix(in), in["gamma"], in.number("eps"));
  });
}

TEST_P(GoldenNorms, GroupNorm) {
  check("group_norm", 5, [](const GoldenInputs& in) {
    return group_norm(in["x"], in.integer("groups"), in["gamma"], in["beta"], in.number("eps"));
  });
}

// With the statistics of each sample, which update the running ones, and with running statistics.
TEST_P(GoldenNorms, InstanceNorm) {
  for (const bool training : {true, false}) {
    std::vector<InstanceNormState> states;
    const auto call = [&](const GoldenInputs& in) {
      states.push_back({in["running_mean"], in["running_var"]});
      return instance_norm(
          in["x"], in["gamma"], in["beta"], states.back(),
          {.training = training, .momentum = in.number("momentum"), .eps = in.number("eps")});
    };
    const std::string kind = training ? "_train" : "_eval";
    const auto wanted = [&](const std::string& name) { return name.ends_with(kind); };
    check("instance_norm", 3, call, wanted);
    size_t next = 0;
    for (const ref::Json& json : ref::golden_cases("instance_norm")) {
      if (!wanted(json.at("name"))) continue;
      const InstanceNormState& state = states.at(next++);
      const ref::Json& want = json.at(training ? "outputs" : "inputs");
      EXPECT_TRUE(agrees_with_golden(state.running_mean, want.at("running_mean"), 20, 4));
      EXPECT_TRUE(agrees_with_golden(state.running_var, want.at("running_var"), 20, 4));
    }
  }
}

}  // namespace
}  // namespace gradus
