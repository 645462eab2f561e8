// Softmax, LogSoftmax and Softmax2d as modules: no parameters; formulas in core/ops/softmax.h.
#pragma once

#include "autograd/ops/softmax.h"
#include "nn/module.h"

namespace gradus::nn {

// Over axis `dim`, counted from the back when negative.
// https://pytorch.org/docs/stable/generated/torch.nn.Softmax.html
// Backward starts from y as stored.
inline SumLengths softmax_lengths(const Shape& x, int dim) {
  const int64_t m = x[normalize_axis(dim, x.rank(), "softmax")];
  return {.y = m, .dx = m, .rounds_between = true};
}

class Softmax final : public Module {
 public:
  explicit Softmax(int dim) : dim(dim) {}
  std::string_view kind() const override { return "Softmax"; }
  Tensor forward(const Tensor& x) override { return softmax(x, dim); }
  SumLengths sum_lengths(const Shape& x, const Shape&) override { return softmax_lengths(x, dim); }

  int dim;
};

// https://pytorch.org/docs/stable/generated/torch.nn.LogSoftmax.html
class LogSoftmax final : public Module {
 public:
  explicit LogSoftmax(int dim) : dim(dim) {}
  std::string_view kind() const override { return "LogSoftmax"; }
  Tensor forward(const Tensor& x) override { return log_softmax(x, dim); }
  SumLengths sum_lengths(const Shape& x, const Shape&) override { return softmax_lengths(x, dim); }

  int dim;
};

// Over the channels at each pixel: x [n, c, h, w] or [c, h, w].
// https://pytorch.org/docs/stable/generated/torch.nn.Softmax2d.html
class Softmax2d final : public Module {
 public:
  std::string_view kind() const override { return "Softmax2d"; }
  Tensor forward(const Tensor& x) override {
    check(x.rank() == 3 || x.rank() == 4, "softmax2d", "expected [n, c, h, w] or [c, h, w], got ",
          x);
    return softmax(x, -3);
  }
  SumLengths sum_lengths(const Shape& x, const Shape&) override { return softmax_lengths(x, -3); }
};

}  // namespace gradus::nn
