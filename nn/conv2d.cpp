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

SumLengths Conv2d::sum_lengths(const Shape& x, const Shape& y) {
  const int64_t taps = weight.size(2) * weight.size(3);
  return {.y = weight.size(1) * taps,
          .dx = weight.size(0) / options.groups * taps,
          .parameters = x[0] * y[2] * y[3]};
}

}  // namespace gradus::nn
