// The losses against PyTorch.
#include "autograd/ops/nll_loss.h"
#include "autograd/ops/pointwise_loss.h"
#include "tests/support/golden_op.h"

namespace gradus {
namespace {

class GoldenLosses : public GoldenTest {};
GRADUS_GOLDEN_ON_BOTH(GoldenLosses);

TEST_P(GoldenLosses, All) {
  check("losses", 33, [](const GoldenInputs& in) {
    const Tensor x = in["x"], t = in["t"];
    if (in.name == "mse") return mse_loss(x, t, in.reduction());
    if (in.name == "l1") return l1_loss(x, t, in.reduction());
    if (in.name == "smooth_l1") return smooth_l1_loss(x, t, in.reduction(), in.number("beta"));
    if (in.name == "bce_with_logits") {
      return binary_cross_entropy_with_logits(
          x, t,
          {.weight = in["weight"], .pos_weight = in["pos_weight"], .reduction = in.reduction()});
    }
    return nll_loss(x, in.labels(),
                    {.weight = in["weight"],
                     .reduction = in.reduction(),
                     .ignore_index = in.integer("ignore_index")});
  });
}

}  // namespace
}  // namespace gradus
