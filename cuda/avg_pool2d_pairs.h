// avg_pool2d where whole windows tile the input: launchers of cuda/avg_pool2d_pairs.cu (2 x 2) and
// cuda/avg_pool2d_tiles.cu (any size).
#pragma once

#include "core/dtype.h"
#include "core/ops/avg_pool2d.h"
#include "cuda/context.h"
#include "cuda/image.h"

namespace gradus {

// The size of the windows along both axes where all of them are whole, have one size and touch;
// else 0 along both.
inline Pair tile_of(const AvgWindows& windows) {
  const auto along = [](const AvgAxis& axis) -> int64_t {
    if (axis.adaptive) return axis.extent % axis.positions == 0 ? axis.extent / axis.positions : 0;
    const bool touch = axis.kernel == axis.stride && axis.padding == 0;
    return touch && axis.kernel * axis.positions <= axis.extent ? axis.kernel : 0;
  };
  const Pair size{along(windows.h), along(windows.w)};
  return size[0] > 0 && size[1] > 0 ? size : Pair(0);
}

// sum / divisor. Results of 16 bits are multiplied by the reciprocal, 2^-23 off before they are
// rounded: a division takes more instructions than their bytes take time.
template <class T>
struct Average {
  acc_t<T> by;
  explicit Average(int64_t divisor) : by(static_cast<acc_t<T>>(divisor)) {
    if constexpr (sizeof(T) == 2) by = 1 / by;
  }
  GRADUS_HD acc_t<T> operator()(acc_t<T> sum) const {
    if constexpr (sizeof(T) == 2) {
      return sum * by;
    } else {
      return sum / by;
    }
  }
};

// Of windows that tile the input.
template <class T>
Average<T> average_of(const AvgWindows& windows) {
  const Pair size = tile_of(windows);
  return Average<T>(windows.divisor != 0 ? windows.divisor : size[0] * size[1]);
}

// launch(type, x, y, format) for images of the dtype and the format of x; whether it launched.
template <class F>
bool launch_images(const AnyView& x, const AnyView& y, std::string_view op, F&& launch) {
  const MemoryFormat format = format_of(x, op);
  bool launched = false;
  visit(Floating{}, x.dtype,
        [&](auto type) { launched = launch(type, Image(x, format), Image(y, format), format); });
  return launched;
}

// Each launches, or returns false where it does not take the windows, the format or the alignment.
bool avg_pool2d_pairs_forward(Cuda& cuda, const AvgPool2dForward& args);
bool avg_pool2d_pairs_backward(Cuda& cuda, const AvgPool2dBackward& args);
bool avg_pool2d_tiles_forward(Cuda& cuda, const AvgPool2dForward& args);
bool avg_pool2d_tiles_backward(Cuda& cuda, const AvgPool2dBackward& args);

}  // namespace gradus
