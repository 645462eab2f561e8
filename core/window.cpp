#include "core/ops/window.h"

#include <limits>

namespace gradus {

void check_window(const Window& window, int64_t h, int64_t w, std::string_view op, bool ceil_mode) {
  constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();  // products fit 63 bits
  const auto text = [](const Pair& pair) { return concat(pair[0], "x", pair[1]); };
  for (size_t i = 0; i < 2; ++i) {
    check(window.kernel[i] > 0, op, "kernel must be positive, got ", text(window.kernel));
    check(window.stride[i] > 0, op, "stride must be positive, got ", text(window.stride));
    check(window.dilation[i] > 0, op, "dilation must be positive, got ", text(window.dilation));
    check(window.padding[i] >= 0, op, "padding must not be negative, got ", text(window.padding));
    for (const Pair& pair : {window.kernel, window.stride, window.dilation, window.padding}) {
      check(pair[i] <= kLargest, op, "kernel, stride, dilation and padding must be at most ",
            kLargest, ", got ", text(pair));
    }
  }
  const Pair padded{h + 2 * window.padding[0], w + 2 * window.padding[1]};
  const Pair span{window.span(0), window.span(1)};
  const Pair over = ceil_mode ? Pair{window.stride[0] - 1, window.stride[1] - 1} : Pair(0);
  check(padded[0] + over[0] >= span[0] && padded[1] + over[1] >= span[1], op, "padded input ",
        text(padded), " is smaller than the dilated kernel ", text(span));
}

void check_pool_padding(const Window& window, std::string_view op) {
  const auto& [kernel, stride, padding, dilation] = window;
  check(2 * padding[0] <= kernel[0] && 2 * padding[1] <= kernel[1], op,
        "padding must be at most half the kernel, got padding ", padding[0], "x", padding[1],
        " and kernel ", kernel[0], "x", kernel[1]);
}

}  // namespace gradus
