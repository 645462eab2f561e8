// avg_pool2d where whole windows of 2 x 2 tile the input: launchers of cuda/avg_pool2d_pairs.cu.
#pragma once

#include "core/ops/avg_pool2d.h"
#include "cuda/context.h"

namespace gradus {

// Launches, or returns false where the windows are others or lie unaligned.
bool avg_pool2d_pairs_forward(Cuda& cuda, const AvgPool2dForward& args);
bool avg_pool2d_pairs_backward(Cuda& cuda, const AvgPool2dBackward& args);

}  // namespace gradus
