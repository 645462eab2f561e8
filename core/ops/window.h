// Sliding windows over the two spatial axes: what convolution and pooling share.
#pragma once

#include <array>

#include "core/error.h"
#include "core/host_device.h"
#include "core/shape.h"

namespace gradus {

using Pair = std::array<int64_t, 2>;  // (h, w), in this order everywhere

struct Window {
  Pair kernel{1, 1};  // r, s
  Pair stride{1, 1};
  Pair padding{0, 0};   // zeros (conv) or -inf (max) on both sides
  Pair dilation{1, 1};  // distance between neighbouring kernel elements

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
};

// Throws invalid_argument naming `op` unless every number makes sense and the window fits the
// padded input of h x w: "padded input 2x2 is smaller than the dilated kernel 3x3".
void check_window(const Window& window, int64_t h, int64_t w, std::string_view op);

}  // namespace gradus
