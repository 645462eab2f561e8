// What the launchers of group normalization share. Host-only.
#pragma once

#include "core/ops/group_norm.h"
#include "cuda/context.h"

namespace gradus::detail {

// Channels-last tensors; x is not empty.
void group_norm_columns_forward(Cuda& cuda, const GroupNormForward& args,
                                const GroupNormGeometry& g);
void group_norm_columns_backward(Cuda& cuda, const GroupNormBackward& args,
                                 const GroupNormGeometry& g);

// The same for samples that fit on chip; false, and nothing launched, where they do not.
bool group_norm_held_forward(Cuda& cuda, const GroupNormForward& args, const GroupNormGeometry& g);
bool group_norm_held_backward(Cuda& cuda, const GroupNormBackward& args,
                              const GroupNormGeometry& g);

}  // namespace gradus::detail
