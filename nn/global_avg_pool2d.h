// GlobalAvgPool2d: the mean of each channel, what PyTorch spells AdaptiveAvgPool2d(1).
#pragma once

#include "autograd/ops/sum.h"
#include "nn/module.h"

namespace gradus::nn {

// x [n, c, h, w] -> [n, c, 1, 1].
class GlobalAvgPool2d final : public Module {
 public:
  std::string_view kind() const override { return "GlobalAvgPool2d"; }
  Tensor forward(const Tensor& x) override {
    check(x.rank() == 4, "global_avg_pool2d", "expected [n, c, h, w], got ", x);
    return mean(x, {2, 3}, true);
  }
};

}  // namespace gradus::nn
