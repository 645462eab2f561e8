// avg_pool2d where whole windows tile the input: launchers of cuda/avg_pool2d_pairs.cu (2 x 2) and
// cuda/avg_pool2d_tiles.cu (any size).
#pragma once

#include "core/ops/avg_pool2d.h"
#include "cuda/context.h"

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

// Each launches, or returns false where it does not take the windows, the format or the alignment.
bool avg_pool2d_pairs_forward(Cuda& cuda, const AvgPool2dForward& args);
bool avg_pool2d_pairs_backward(Cuda& cuda, const AvgPool2dBackward& args);
bool avg_pool2d_tiles_forward(Cuda& cuda, const AvgPool2dForward& args);
bool avg_pool2d_tiles_backward(Cuda& cuda, const AvgPool2dBackward& args);

}  // namespace gradus
