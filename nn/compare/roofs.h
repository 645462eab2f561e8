// What a device can do at most, measured: the roofs that times are set against.
#pragma once

#include "nn/compare/layer.h"

namespace gradus {

// GB/s (read and write together) of a plain copy of `bytes`; median of `repeats`.
double copy_bandwidth(Device device, int64_t bytes, int repeats);
// TFLOP/s of a product of two n x n matrices.
double product_rate(Device device, DType dtype, int64_t n, int repeats);

// Both of a device, for the dtypes given.
CompareDevice measure_roofs(Device device, const std::vector<DType>& dtypes);

// Forward and, where the layer has a gradient, backward on the device of `roofs`: medians of
// `repeats`, and the least time that the roofs allow as a share of it. The layer's own launches say
// the bytes and operations; operands are in a cache where they fit one.
std::vector<CompareTime> times_of(const ComparedLayer& layer, const CompareDevice& roofs,
                                  int repeats);

}  // namespace gradus
