// Sliding windows over the two spatial axes: what convolution and pooling share.
#pragma once

#include "core/error.h"
#include "core/host_device.h"
#include "core/shape.h"

namespace gradus {

// (h, w), in this order everywhere; one number stands for both, as in PyTorch.
struct Pair {
  int64_t values[2];

  constexpr Pair(int64_t both) : values{both, both} {}  // implicit: {.padding = 1}
  constexpr Pair(int64_t h, int64_t w) : values{h, w} {}
  constexpr int64_t operator[](size_t i) const { return values[i]; }
  constexpr int64_t& operator[](size_t i) { return values[i]; }
  friend constexpr bool operator==(const Pair&, const Pair&) = default;
};

struct Window {
  Pair kernel = 1;  // r, s
  Pair stride = 1;
  Pair padding = 0;   // zeros (conv) or -inf (max) on both sides
  Pair dilation = 1;  // distance between neighbouring kernel elements

  // Extent that the dilated kernel covers along axis 0 (h) or 1 (w).
  int64_t span(int axis) const {
    const size_t i = static_cast<size_t>(axis);
    return dilation[i] * (kernel[i] - 1) + 1;
  }

  // Number of window positions along an axis of `extent`, floor mode:
  //   (extent + 2 padding - dilation (kernel - 1) - 1) / stride + 1
  int64_t positions(int axis, int64_t extent) const {
    const size_t i = static_cast<size_t>(axis);
    return (extent + 2 * padding[i] - span(axis)) / stride[i] + 1;
  }

  // The same for pooling: in ceil mode one more if the last window overhangs, unless it would start
  // in the right padding.
  int64_t pooled_positions(int axis, int64_t extent, bool ceil_mode) const {
    const size_t i = static_cast<size_t>(axis);
    if (!ceil_mode) return positions(axis, extent);
    const int64_t rest = extent + 2 * padding[i] - span(axis);
    const int64_t ceiled = (rest + stride[i] - 1) / stride[i] + 1;
    const bool starts_inside = (ceiled - 1) * stride[i] < extent + padding[i];
    return starts_inside ? ceiled : ceiled - 1;
  }
};

// Throws invalid_argument naming `op` unless every number makes sense and the window fits the
// padded input of h x w, in ceil mode when it overhangs by less than its stride: "padded input 2x2
// is smaller than the dilated kernel 3x3".
void check_window(const Window& window, int64_t h, int64_t w, std::string_view op,
                  bool ceil_mode = false);
// Throws unless the padding is at most half the kernel, as pooling needs.
void check_pool_padding(const Window& window, std::string_view op);

}  // namespace gradus
