// Activations as modules: no parameters, any shape; formulas in core/ops/activation.h.
#pragma once

#include "autograd/ops/activation.h"
#include "nn/module.h"

namespace gradus::nn {

// Any activation by value, as parse_activation("relu") gives it.
class Activate : public Module {
 public:
  explicit Activate(Activation activation) : activation_(activation) {}
  std::string_view kind() const override { return to_string(activation_); }
  Tensor forward(const Tensor& x) override { return activate(x, activation_); }

 private:
  Activation activation_;
};

// https://pytorch.org/docs/stable/generated/torch.nn.ReLU.html
class ReLU final : public Activate {
 public:
  ReLU() : Activate(activation_of<Relu>) {}
  std::string_view kind() const override { return "ReLU"; }
};

}  // namespace gradus::nn
