// What moving the inputs of a layer a little tells of it, in f64 on the CPU: how large the terms
// are that cancel in its values, and whether its gradients are those of its forward.
#pragma once

#include "nn/compare/layer.h"

namespace gradus {

// For each value of the layer, in the order of judge_layer: how far it moves at most, divided by u,
//   when every input moves by a relative u;
//   when x alone does so after the forward, beside the statistics that it has saved;
//   when a mean is rounded to u: x is shifted by a large number that the value does not depend on.
// Rounding of the same size in any of the layer's own sums moves it about as far. The last two are
// for terms that cancel whatever the inputs are: over a set of two values dx is eps·rstd² of its
// terms, and y = ±1 tells nothing of the mean.
std::vector<double> measured_scales(const ComparedLayer& layer, const LayerRun& reference);

// The gradient of input `input` along a random direction v: Σ g·v against the central difference
// Σ dy·(y(x + v) - y(x - v)) / 2. Outputs that have a corner there (a ReLU at 0, a tie of a pooling
// window) and those whose dy is not finite are left out on both sides, by setting their dy to 0.
CompareDifferences differences_of(const ComparedLayer& layer, size_t input,
                                  const LayerRun& reference);

}  // namespace gradus
