#include "nn/conv2d.h"

#include "nn/init.h"

namespace gradus::nn {

Conv2d::Conv2d(int64_t in_channels, int64_t out_channels, Pair kernel_size,
               const Conv2dOptions& options, bool with_bias)
    : options(options) {
  check(in_channels > 0 && out_channels > 0, "conv2d", "channels must be positive, got ",
        in_channels, " and ", out_channels);
  check(kernel_size[0] > 0 && kernel_size[1] > 0, "conv2d", "kernel_size must be positive, got ",
        kernel_size[0], "x", kernel_size[1]);
  check(
      options.groups > 0 && in_channels % options.groups == 0 && out_channels % options.groups == 0,
      "conv2d", "groups ", options.groups, " must divide ", in_channels, " and ", out_channels,
      " channels");
  const Shape shape{out_channels, in_channels / options.groups, kernel_size[0], kernel_size[1]};
  weight = init::kaiming_uniform(shape);
  if (with_bias) bias = init::bias_uniform(shape);
}

void Conv2d::list(Contents& own) {
  own.parameter("weight", weight);
  own.parameter("bias", bias, Stored::acc);
}

}  // namespace gradus::nn
