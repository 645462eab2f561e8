// A call of a module as a layer to be compared.
#pragma once

#include <optional>

#include "nn/compare/layer.h"
#include "nn/compare/recording.h"

namespace gradus::nn {

// The module of call `index` by itself: of a module with children, its own arithmetic, with what
// they gave taken as recorded; nothing where it has none (Sequential, Flatten). `tensors` are from
// before the recording. The recording and the model must outlive the result.
std::optional<ComparedLayer> layer_of(const Recording& recording, size_t index,
                                      const OwnTensors& tensors);

}  // namespace gradus::nn
