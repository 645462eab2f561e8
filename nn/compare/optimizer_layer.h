// One step of an optimizer as a layer to be compared.
#pragma once

#include <functional>
#include <memory>

#include "nn/compare/layer.h"
#include "nn/optim/optimizer.h"

namespace gradus::nn {

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(Module&)>;

// The step that `optimizer`, which make_optimizer made for the model, would take now: parameters
// and state in, both as the step leaves them out. Parameters without a gradient stay out of it. The
// model must outlive the result.
ComparedLayer layer_of(Module& model, const Optimizer& optimizer, const MakeOptimizer& make);

}  // namespace gradus::nn
