// One spatial axis of a windowed sum: which inputs meet which outputs, for a convolution and for
// its gradient with respect to x, which is one windowed sum per phase of the stride.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/ops/window.h"

namespace gradus::GRADUS_ISA {

// Output i (at position out_first + i · out_step of its tensor) sums over taps t, of kernel index
// kernel_first + t · kernel_step, the input at position first + i · step + t · tap_step.
struct Axis {
  int64_t outputs, inputs;
  int64_t first, step;
  int64_t taps, tap_step;
  int64_t kernel_first = 0, kernel_step = 1;
  int64_t out_first = 0, out_step = 1;

  int64_t low() const { return first + std::min<int64_t>(0, (taps - 1) * tap_step); }
  // Inputs, zeros of the padding included, that `count` neighbouring outputs read.
  int64_t reach(int64_t count) const {
    return taps == 0 ? 0 : (count - 1) * step + (taps - 1) * std::abs(tap_step) + 1;
  }
};

inline Axis forward_axis(const Window& window, int axis, int64_t inputs, int64_t outputs) {
  const auto i = static_cast<size_t>(axis);
  return {.outputs = outputs,
          .inputs = inputs,
          .first = -window.padding[i],
          .step = window.stride[i],
          .taps = window.kernel[i],
          .tap_step = window.dilation[i]};
}

// The positions h ≡ phase (mod stride) of dx. Output p of the convolution read h at tap r when
//   h = p · stride - padding + r · dilation,
// so only every (stride / gcd(stride, dilation))-th tap meets this phase, or none does.
inline Axis gradient_axis(const Window& window, int axis, int64_t phase, int64_t dx_extent,
                          int64_t dy_extent) {
  const auto i = static_cast<size_t>(axis);
  const int64_t stride = window.stride[i], dilation = window.dilation[i];
  const int64_t shared = std::gcd(stride, dilation);
  const int64_t period = stride / shared;
  const int64_t start = phase + window.padding[i];
  const int64_t tries = std::min(period, window.kernel[i]);
  int64_t r = 0;
  while (r < tries && (start - r * dilation) % stride != 0) ++r;
  const int64_t taps = r == tries ? 0 : (window.kernel[i] - 1 - r) / period + 1;
  return {.outputs = (dx_extent - phase + stride - 1) / stride,
          .inputs = dy_extent,
          .first = taps == 0 ? 0 : (start - r * dilation) / stride,
          .step = 1,
          .taps = taps,
          .tap_step = -dilation / shared,
          .kernel_first = r,
          .kernel_step = period,
          .out_first = phase,
          .out_step = stride};
}

}  // namespace gradus::GRADUS_ISA
