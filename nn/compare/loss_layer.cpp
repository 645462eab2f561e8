#include "nn/compare/loss_layer.h"

#include "autograd/ops/cross_entropy.h"

namespace gradus::nn {

ComparedLayer loss_layer(const Tensor& logits, const Tensor& labels) {
  using Kind = ComparedLayer::Input::Kind;
  ComparedLayer layer{.layer = "cross_entropy", .path = "loss", .dtype = logits.dtype()};
  layer.inputs = {{"x", logits, Kind::x}, {"labels", labels.cpu(), Kind::constant}};
  layer.outputs = {{"y", Tensor::ones({}, {.dtype = acc_dtype(logits.dtype())})}};
  layer.forward = [](std::span<const Tensor> in) {
    return std::vector<Tensor>{cross_entropy(in[0], in[1])};
  };
  layer.lengths = {.y = logits.numel(), .dx = logits.size(1)};
  return layer;
}

}  // namespace gradus::nn
