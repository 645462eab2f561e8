#include "nn/linear.h"

#include "autograd/ops/matmul.h"
#include "nn/init.h"

namespace gradus::nn {

Linear::Linear(int64_t in_features, int64_t out_features, bool with_bias) {
  check(in_features > 0 && out_features > 0, "linear", "features must be positive, got ",
        in_features, " and ", out_features);
  weight = init::kaiming_uniform({out_features, in_features});
  if (with_bias) bias = init::bias_uniform(weight.shape());
}

Tensor Linear::forward(const Tensor& x) { return linear(x, weight, bias); }

void Linear::list(Contents& own) {
  own.parameter("weight", weight);
  own.parameter("bias", bias, Stored::acc);
}

SumLengths Linear::sum_lengths(const Shape& x, const Shape&) {
  return {.y = weight.size(1), .dx = weight.size(0), .parameters = x.numel() / weight.size(1)};
}

}  // namespace gradus::nn
