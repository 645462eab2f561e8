// Average pooling against PyTorch.
#include "autograd/ops/avg_pool2d.h"
#include "tests/support/golden_op.h"

namespace gradus {
namespace {

class GoldenPooling : public GoldenTest {};
GRADUS_ON_EACH_DEVICE(GoldenPooling);

TEST_P(GoldenPooling, AvgPool2d) {
  check("avg_pool2d", 8, [](const GoldenInputs& in) {
    AvgPool2dOptions options{.kernel_size = ref::golden_pair(in.args, "kernel"),
                             .stride = ref::golden_pair(in.args, "stride"),
                             .padding = ref::golden_pair(in.args, "padding"),
                             .ceil_mode = in.arg("ceil_mode"),
                             .count_include_pad = in.arg("count_include_pad")};
    if (in.integer("divisor") != 0) options.divisor_override = in.integer("divisor");
    return avg_pool2d(in["x"], options);
  });
}

TEST_P(GoldenPooling, AdaptiveAvgPool2d) {
  check("adaptive_avg_pool2d", 5, [](const GoldenInputs& in) {
    return adaptive_avg_pool2d(in["x"], ref::golden_pair(in.args, "size"));
  });
}

}  // namespace
}  // namespace gradus
