// Sequential: modules one after another, named "0", "1", ... as in PyTorch. Residual: f(x) + x.
//
//   nn::Sequential net(nn::Conv2d(1, 32, 3, {.padding = {1, 1}}), nn::ReLU(), nn::Flatten(),
//                      nn::Linear(32 * 28 * 28, 10));
//   Tensor logits = net(x);
//
// Sequential(Sequential(a, b)) is a move, with keys like 1.weight, where PyTorch's are 0.1.weight:
// for these, add() the inner one to an empty outer one.
// https://pytorch.org/docs/stable/generated/torch.nn.Sequential.html
#pragma once

#include <concepts>
#include <memory>

#include "nn/module.h"

namespace gradus::nn {

// A layer to be moved from, or a shared pointer to one.
template <class M>
std::shared_ptr<Module> share(M&& module) {
  if constexpr (std::convertible_to<M, std::shared_ptr<Module>>) {
    return std::forward<M>(module);
  } else {
    static_assert(std::derived_from<M, Module>, "pass a module as a temporary or by std::move");
    return std::make_shared<M>(std::forward<M>(module));
  }
}

class Sequential final : public Module {
 public:
  Sequential() = default;
  template <class... Modules>
  requires(sizeof...(Modules) != 1 || !(std::same_as<std::remove_cvref_t<Modules>, Sequential> &&
                                        ...)) explicit Sequential(Modules&&... modules) {
    (add(std::forward<Modules>(modules)), ...);
  }

  template <class M>
  Sequential& add(M&& module) {
    return push_back(share(std::forward<M>(module)));
  }
  Sequential& push_back(std::shared_ptr<Module> module);  // throws on null

  size_t size() const { return children_.size(); }
  Module& operator[](size_t i) const;  // throws when out of range

  std::string_view kind() const override { return "Sequential"; }
  Tensor forward(const Tensor& x) override;
  void list(Contents& own) override;
  SumLengths sum_lengths(const Shape&, const Shape&) override { return {}; }

 private:
  std::vector<std::shared_ptr<Module>> children_;
};

// body(x) + x, or body(x) + shortcut(x) where the body changes the shape. Keys: "body.…" and
// "shortcut.…". Residual(Residual(f)) is a move, f(x) + x: for a residual block as the body, pass
// std::make_shared<Residual>(f).
class Residual final : public Module {
 public:
  template <class Body>
  requires(!std::same_as<std::remove_cvref_t<Body>, Residual>) explicit Residual(Body&& body)
      : body_(share(std::forward<Body>(body))) {
    check_body();
  }
  template <class Body, class Shortcut>
  Residual(Body&& body, Shortcut&& shortcut)
      : body_(share(std::forward<Body>(body))), shortcut_(share(std::forward<Shortcut>(shortcut))) {
    check_body();
  }

  std::string_view kind() const override { return "Residual"; }
  Tensor forward(const Tensor& x) override;
  void list(Contents& own) override;
  SumLengths sum_lengths(const Shape&, const Shape&) override { return {}; }

 private:
  void check_body() const;  // throws on null

  std::shared_ptr<Module> body_;
  std::shared_ptr<Module> shortcut_;  // null: the identity
};

}  // namespace gradus::nn
