// Stochastic gradient descent with momentum, as
// https://pytorch.org/docs/stable/generated/torch.optim.SGD.html; formula in core/ops/sgd.h.
#pragma once

#include "nn/optim/optimizer.h"

namespace gradus::nn {

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;  // needs momentum and no dampening
};

class SGD final : public Optimizer {
 public:
  explicit SGD(std::vector<NamedTensor> parameters, const SGDOptions& options = {});
  explicit SGD(std::vector<Tensor> parameters, const SGDOptions& options = {})
      : SGD(number(std::move(parameters)), options) {}

  std::string_view name() const override { return "sgd"; }
  std::string settings() const override;

 protected:
  void update(const std::vector<size_t>& active, const std::vector<Tensor>& grads) override;
  std::vector<NamedTensor> buffers() const override;

 private:
  SGDOptions options_;
  std::vector<Tensor> momentum_buffers_;  // like the parameters, acc; empty without momentum
};

}  // namespace gradus::nn
