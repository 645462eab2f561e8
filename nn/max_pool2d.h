// MaxPool2d, as https://pytorch.org/docs/stable/generated/torch.nn.MaxPool2d.html
#pragma once

#include <optional>

#include "core/ops/window.h"
#include "nn/module.h"

namespace gradus::nn {

// x [n, c, h, w] -> [n, c, p, q], or without n; formula in core/ops/max_pool2d.h.
class MaxPool2d final : public Module {
 public:
  // Without a stride the windows touch: stride = kernel_size.
  explicit MaxPool2d(Pair kernel_size, std::optional<Pair> stride = std::nullopt, Pair padding = 0,
                     Pair dilation = 1, bool ceil_mode = false)
      : window{.kernel = kernel_size,
               .stride = stride.value_or(kernel_size),
               .padding = padding,
               .dilation = dilation},
        ceil_mode(ceil_mode) {}

  std::string_view kind() const override { return "MaxPool2d"; }
  Tensor forward(const Tensor& x) override;
  SumLengths sum_lengths(const Shape& x, const Shape& y) override;

  Window window;
  bool ceil_mode;
};

}  // namespace gradus::nn
