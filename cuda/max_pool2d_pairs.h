// max_pool2d where windows of 2 x 2 tile the input: launchers of cuda/max_pool2d_pairs.cu; and of
// cuda/max_pool2d_strided.cu and cuda/max_pool2d_strided_backward.cu.
#pragma once

#include "core/ops/max_pool2d.h"
#include "cuda/context.h"

namespace gradus {

void max_pool2d_pairs_forward(Cuda& cuda, const MaxPool2dForward& args);
void max_pool2d_pairs_backward(Cuda& cuda, const MaxPool2dBackward& args);

// Each launches, or returns false where it does not take the windows, the format or the alignment.
bool max_pool2d_strided_forward(Cuda& cuda, const MaxPool2dForward& args);
bool max_pool2d_strided_backward(Cuda& cuda, const MaxPool2dBackward& args);

}  // namespace gradus
