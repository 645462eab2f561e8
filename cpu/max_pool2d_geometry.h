// What max_pool2d works on (core/ops/max_pool2d.h).
#pragma once

#include <algorithm>

#include "core/ops/max_pool2d.h"
#include "cpu/parallel.h"

namespace gradus::GRADUS_ISA {

// Extents and element strides of one pooling; x and y stand for dx and dy in backward.
struct MaxPoolGeometry {
  int64_t n, c, h, w, p, q;
  Strides x, y;
  bool channels_last;
  Window window;

  MaxPoolGeometry(const AnyView& x_view, const AnyView& y_view, const Window& win)
      : n(x_view.shape[0]),
        c(x_view.shape[1]),
        h(x_view.shape[2]),
        w(x_view.shape[3]),
        p(y_view.shape[2]),
        q(y_view.shape[3]),
        channels_last(format_of(x_view, "max_pool2d") == MemoryFormat::channels_last),
        window(win) {
    const auto format = channels_last ? MemoryFormat::channels_last : MemoryFormat::contiguous;
    x = strides_of(x_view.shape, format);
    y = strides_of(y_view.shape, format);
  }

  // Position along an axis (0: h, 1: w) of tap 0 of window i.
  int64_t start(size_t axis, int64_t i) const {
    return i * window.stride[axis] - window.padding[axis];
  }
  int64_t taps(size_t axis) const { return window.kernel[axis]; }
  // Windows that hold an element, along an axis and at most.
  int64_t most_holders(size_t axis) const {
    const int64_t covering = (window.span(static_cast<int>(axis)) - 1) / window.stride[axis] + 1;
    return std::min({taps(axis), covering, axis == 0 ? p : q});
  }
  // The first tap of window i inside the axis, and the end of those inside.
  int64_t first_tap(size_t axis, int64_t i) const {
    const int64_t outside = -start(axis, i), dilation = window.dilation[axis];
    return outside <= 0 ? 0 : (outside + dilation - 1) / dilation;
  }
  int64_t end_tap(size_t axis, int64_t i) const {
    const int64_t room = (axis == 0 ? h : w) - start(axis, i), dilation = window.dilation[axis];
    return room >= window.span(static_cast<int>(axis)) ? taps(axis)
                                                       : (room + dilation - 1) / dilation;
  }
};

}  // namespace gradus::GRADUS_ISA
