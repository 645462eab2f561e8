#include "nn/sequential.h"

#include "autograd/ops/arithmetic.h"
#include "core/error.h"

namespace gradus::nn {

Sequential& Sequential::push_back(std::shared_ptr<Module> module) {
  check(module != nullptr, "sequential", "expected a module, got a null pointer");
  children_.push_back(std::move(module));
  return *this;
}

Module& Sequential::operator[](size_t i) const {
  check(i < size(), "sequential", "module ", i, " of ", size());
  return *children_[i];
}

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (const auto& child : children_) y = (*child)(y);
  return y;
}

void Sequential::list(Contents& own) {
  for (size_t i = 0; i < size(); ++i) own.child(std::to_string(i), *children_[i]);
}

void Residual::check_body() const {
  check(body_ != nullptr, "residual", "expected a module, got a null pointer");
}

Tensor Residual::forward(const Tensor& x) {
  const Tensor y = (*body_)(x);
  return y + (shortcut_ == nullptr ? x : (*shortcut_)(x));
}

void Residual::list(Contents& own) {
  own.child("body", *body_);
  if (shortcut_ != nullptr) own.child("shortcut", *shortcut_);
}

}  // namespace gradus::nn
