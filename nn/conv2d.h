// Conv2d, as https://pytorch.org/docs/stable/generated/torch.nn.Conv2d.html
#pragma once

#include "autograd/ops/conv2d.h"
#include "nn/module.h"

namespace gradus::nn {

// x [n, in, h, w] -> [n, out, p, q]; formula in core/ops/conv2d.h.
class Conv2d final : public Module {
 public:
  Conv2d(int64_t in_channels, int64_t out_channels, Pair kernel_size,
         const Conv2dOptions& options = {}, bool bias = true);

  std::string_view kind() const override { return "Conv2d"; }
  Tensor forward(const Tensor& x) override { return conv2d(x, weight, bias, options); }
  void list(Contents& own) override;
  SumLengths sum_lengths(const Shape& x, const Shape& y) override;

  Tensor weight;  // [out, in/groups, r, s]
  Tensor bias;    // [out], acc; undefined without bias
  Conv2dOptions options;
};

}  // namespace gradus::nn
