// AvgPool2d and AdaptiveAvgPool2d, as
// https://pytorch.org/docs/stable/generated/torch.nn.AvgPool2d.html and
// https://pytorch.org/docs/stable/generated/torch.nn.AdaptiveAvgPool2d.html
#pragma once

#include "autograd/ops/avg_pool2d.h"
#include "nn/module.h"

namespace gradus::nn {

// x [n, c, h, w] -> [n, c, p, q], or without n; formula in core/ops/avg_pool2d.h.
class AvgPool2d final : public Module {
 public:
  // Without a stride the windows touch: stride = kernel_size.
  explicit AvgPool2d(Pair kernel_size, std::optional<Pair> stride = std::nullopt, Pair padding = 0,
                     bool ceil_mode = false, bool count_include_pad = true,
                     std::optional<int64_t> divisor_override = std::nullopt)
      : options{.kernel_size = kernel_size,
                .stride = stride,
                .padding = padding,
                .ceil_mode = ceil_mode,
                .count_include_pad = count_include_pad,
                .divisor_override = divisor_override} {}

  std::string_view kind() const override { return "AvgPool2d"; }
  Tensor forward(const Tensor& x) override { return avg_pool2d(x, options); }
  SumLengths sum_lengths(const Shape&, const Shape&) override {
    const int64_t m = options.kernel_size[0] * options.kernel_size[1];
    return {.y = m, .dx = m};
  }

  AvgPool2dOptions options;
};

// x [n, c, h, w] -> [n, c, output_size], or without n; AdaptiveAvgPool2d(1) is the mean of each
// channel.
class AdaptiveAvgPool2d final : public Module {
 public:
  explicit AdaptiveAvgPool2d(Pair output_size) : output_size(output_size) {}

  std::string_view kind() const override { return "AdaptiveAvgPool2d"; }
  Tensor forward(const Tensor& x) override { return adaptive_avg_pool2d(x, output_size); }
  SumLengths sum_lengths(const Shape& x, const Shape& y) override {
    const int64_t m = x[x.rank() - 2] * x[x.rank() - 1];  // a window of all
    return {.y = m, .dx = y[y.rank() - 2] * y[y.rank() - 1]};
  }

  Pair output_size;
};

}  // namespace gradus::nn
