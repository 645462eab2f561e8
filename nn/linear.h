// Linear, as https://pytorch.org/docs/stable/generated/torch.nn.Linear.html
#pragma once

#include "nn/module.h"

namespace gradus::nn {

// x [..., in] -> [..., out]: y = x·weightᵀ + bias.
class Linear final : public Module {
 public:
  Linear(int64_t in_features, int64_t out_features, bool bias = true);

  std::string_view kind() const override { return "Linear"; }
  Tensor forward(const Tensor& x) override;
  void list(Contents& own) override;
  SumLengths sum_lengths(const Shape& x, const Shape& y) override;

  Tensor weight;  // [out, in]
  Tensor bias;    // [out], acc; undefined without bias
};

}  // namespace gradus::nn
