// The cross entropy of a model's output as one more layer to be compared.
#pragma once

#include "nn/compare/layer.h"

namespace gradus::nn {

ComparedLayer loss_layer(const Tensor& logits, const Tensor& labels);

}  // namespace gradus::nn
