// Activations and the softmax family against PyTorch.
#include "autograd/ops/activation.h"
#include "autograd/ops/softmax.h"
#include "tests/support/golden_op.h"

namespace gradus {
namespace {

class GoldenActivations : public GoldenTest {};
GRADUS_ON_EACH_DEVICE(GoldenActivations);

Tensor call(const GoldenInputs& in) {
  const Tensor x = in["x"];
  if (in.name == "leaky_relu") return leaky_relu(x, in.number("a"));
  if (in.name == "elu") return elu(x, in.number("a"));
  if (in.name == "softplus") return softplus(x, in.number("a"), in.number("b"));
  return activate(x, parse_activation(in.name));
}

TEST_P(GoldenActivations, All) { check("activation", 13, call); }

TEST_P(GoldenActivations, Softmax) {
  check("softmax", 10, [](const GoldenInputs& in) {
    const int axis = static_cast<int>(in.integer("axis"));
    return in.name == "softmax" ? softmax(in["x"], axis) : log_softmax(in["x"], axis);
  });
}

}  // namespace
}  // namespace gradus
