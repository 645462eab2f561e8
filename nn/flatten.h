// Flatten, as https://pytorch.org/docs/stable/generated/torch.nn.Flatten.html
#pragma once

#include "nn/module.h"

namespace gradus::nn {

// Axes start_axis to end_axis become one; the elements keep their row-major order, so that a
// channels-last tensor is copied.
class Flatten final : public Module {
 public:
  explicit Flatten(int start_axis = 1, int end_axis = -1)
      : start_axis(start_axis), end_axis(end_axis) {}

  std::string_view kind() const override { return "Flatten"; }
  Tensor forward(const Tensor& x) override { return x.flatten(start_axis, end_axis); }
  SumLengths sum_lengths(const Shape&, const Shape&) override { return {}; }

  int start_axis, end_axis;
};

}  // namespace gradus::nn
