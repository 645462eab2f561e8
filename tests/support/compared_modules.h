// Modules with planted faults, for tests of comparisons.
#pragma once

#include "autograd/grad_mode.h"
#include "autograd/node.h"
#include "nn/module.h"

namespace gradus::test {

struct DoubledNode final : Node {
  double factor = 2;
  std::string_view name() const override { return "doubled"; }
  void backward(const Tensor& dy, Gradients& grads) override {
    grads.set(0, dy.clone().mul_(factor));
  }
};

// 2·x, whose backward multiplies by `factor`.
inline Tensor doubled(const Tensor& x, double factor) {
  Tensor y;
  {
    const NoGradGuard no_grad;
    y = x.detach().clone().mul_(2);
  }
  if (auto node = make_node<DoubledNode>(x)) {
    node->factor = factor;
    attach(y, std::move(node));
  }
  return y;
}

struct Doubled final : nn::Module {
  explicit Doubled(double factor) : factor(factor) {}
  std::string_view kind() const override { return "Doubled"; }
  nn::SumLengths sum_lengths(const Shape&, const Shape&) override { return {}; }
  Tensor forward(const Tensor& x) override { return doubled(x, factor); }
  double factor;
};

// 2·x, with one element off by `shift` in f32 alone.
struct Shifted final : nn::Module {
  Shifted(double shift, int64_t element) : shift(shift), element(element) {}
  std::string_view kind() const override { return "Shifted"; }
  nn::SumLengths sum_lengths(const Shape&, const Shape&) override { return {}; }
  Tensor forward(const Tensor& x) override {
    Tensor y = doubled(x, 2);
    if (x.dtype() != DType::f32) return y;
    const NoGradGuard no_grad;
    Tensor one = y.detach().reshape({-1}).slice(0, element, element + 1);
    one.copy_(Tensor::full({1}, one.item<double>() + shift, {.device = y.device()}));
    return y;
  }
  double shift;
  int64_t element;
};

// 2·x, whose backward is wrong in f32 from its `first`th forward in f32 on, as many as a buffer has
// counted.
struct WrongLater final : nn::Module {
  explicit WrongLater(double first) : first(first) {}
  std::string_view kind() const override { return "WrongLater"; }
  void list(nn::Contents& own) override { own.buffer("calls", calls, nn::Stored::acc); }
  nn::SumLengths sum_lengths(const Shape&, const Shape&) override { return {}; }
  Tensor forward(const Tensor& x) override {
    {
      const NoGradGuard no_grad;
      calls.add_(Tensor::ones({1}, calls.options()));
    }
    const bool wrong = x.dtype() == DType::f32 && calls.item<double>() >= first;
    return doubled(x, wrong ? 1.9 : 2);
  }
  Tensor calls = Tensor::zeros({1});
  double first;
};

}  // namespace gradus::test
