// Activations as modules: no trained parameters, any shape. Names and arguments:
// https://pytorch.org/docs/stable/nn.html#non-linear-activations-weighted-sum-nonlinearity;
// formulas in core/ops/activation_functions.h.
#pragma once

#include "autograd/ops/activation.h"
#include "nn/module.h"

namespace gradus::nn {

// Any activation by value, as parse_activation("relu") gives it.
class Activate : public Module {
 public:
  explicit Activate(const Activation& activation) : activation_(activation) {}
  std::string_view kind() const override { return to_string(activation_); }
  Tensor forward(const Tensor& x) override { return activate(x, activation_); }
  SumLengths sum_lengths(const Shape&, const Shape&) override { return {}; }

 private:
  Activation activation_;
};

class ReLU final : public Activate {
 public:
  ReLU() : Activate(Activation::of<Relu>()) {}
  std::string_view kind() const override { return "ReLU"; }
};

class ReLU6 final : public Activate {
 public:
  ReLU6() : Activate(Activation::of<Relu6>()) {}
  std::string_view kind() const override { return "ReLU6"; }
};

class LeakyReLU final : public Activate {
 public:
  explicit LeakyReLU(double negative_slope = 0.01)
      : Activate(Activation::of(LeakyRelu{.negative_slope = negative_slope})) {}
  std::string_view kind() const override { return "LeakyReLU"; }
};

class ELU final : public Activate {
 public:
  explicit ELU(double alpha = 1) : Activate(Activation::of(Elu{.alpha = alpha})) {}
  std::string_view kind() const override { return "ELU"; }
};

class GELU final : public Activate {
 public:
  // approximate: "none" or "tanh"; throws invalid_argument otherwise.
  explicit GELU(std::string_view approximate = "none") : Activate(make_gelu(approximate)) {}
  std::string_view kind() const override { return "GELU"; }
};

class SiLU final : public Activate {
 public:
  SiLU() : Activate(Activation::of<Silu>()) {}
  std::string_view kind() const override { return "SiLU"; }
};

class Mish final : public Activate {
 public:
  Mish() : Activate(Activation::of<gradus::Mish>()) {}
  std::string_view kind() const override { return "Mish"; }
};

class Sigmoid final : public Activate {
 public:
  Sigmoid() : Activate(Activation::of<gradus::Sigmoid>()) {}
  std::string_view kind() const override { return "Sigmoid"; }
};

class Tanh final : public Activate {
 public:
  Tanh() : Activate(Activation::of<gradus::Tanh>()) {}
  std::string_view kind() const override { return "Tanh"; }
};

class Softplus final : public Activate {
 public:
  // beta: 2^-126 to 2^126; throws invalid_argument otherwise.
  explicit Softplus(double beta = 1, double threshold = 20)
      : Activate(make_softplus(beta, threshold)) {}
  std::string_view kind() const override { return "Softplus"; }
};

class Hardswish final : public Activate {
 public:
  Hardswish() : Activate(Activation::of<gradus::Hardswish>()) {}
  std::string_view kind() const override { return "Hardswish"; }
};

class Hardsigmoid final : public Activate {
 public:
  Hardsigmoid() : Activate(Activation::of<gradus::Hardsigmoid>()) {}
  std::string_view kind() const override { return "Hardsigmoid"; }
};

}  // namespace gradus::nn
