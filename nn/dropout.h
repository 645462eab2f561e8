// Dropout, as https://pytorch.org/docs/stable/generated/torch.nn.Dropout.html
#pragma once

#include "autograd/ops/dropout.h"
#include "nn/module.h"

namespace gradus::nn {

// In training each element becomes 0 with probability p and is divided by 1 - p otherwise, drawn
// from the thread's default generator; in evaluation x passes unchanged.
class Dropout final : public Module {
 public:
  explicit Dropout(double p = 0.5) : p(p) {
    check(p >= 0 && p <= 1, "dropout", "p must be in [0, 1], got ", p);
  }

  std::string_view kind() const override { return "Dropout"; }
  Tensor forward(const Tensor& x) override { return dropout(x, p, training()); }
  SumLengths sum_lengths(const Shape&, const Shape&) override { return {}; }

  double p;
};

}  // namespace gradus::nn
