// Reductions against PyTorch.
#include "autograd/ops/reduce.h"
#include "tests/support/golden_op.h"

namespace gradus {
namespace {

class GoldenReductions : public GoldenTest {};
GRADUS_ON_EACH_DEVICE(GoldenReductions);

TEST_P(GoldenReductions, All) {
  check("reductions", 50, [](const GoldenInputs& in) {
    const Tensor x = in["x"];
    const auto axes = in.arg("axes").get<std::vector<int>>();
    const bool keepdim = in.arg("keepdim").get<bool>();
    if (in.name == "max") return max(x, axes, keepdim);
    if (in.name == "min") return min(x, axes, keepdim);
    if (in.name == "prod") return prod(x, axes, keepdim);
    if (in.name == "norm2") return norm2(x, axes, keepdim);
    if (in.name == "logsumexp") return logsumexp(x, axes, keepdim);
    const double correction = in.number("correction");
    return in.name == "var" ? var(x, axes, correction, keepdim) : std(x, axes, correction, keepdim);
  });
}

}  // namespace
}  // namespace gradus
