// Normalizations over rows against PyTorch.
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

}  // namespace
}  // namespace gradus
