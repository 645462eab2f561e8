// What a device can do at most, measured: the roofs that times are set against.
#pragma once

#include "nn/compare/layer.h"
#include "nn/compare/layer_time.h"

namespace gradus {

// GB/s (read and write together) of a plain copy of `bytes`; median of `repeats`.
double copy_bandwidth(Device device, int64_t bytes, int repeats);
// TFLOP/s of a product of two n x n matrices.
double product_rate(Device device, DType dtype, int64_t n, int repeats);

// Both of a device, for the dtypes given.
CompareDevice measure_roofs(Device device, const std::vector<DType>& dtypes);

// How long a block of calls is timed at least, where there are many layers.
inline constexpr double kRoofBlockSeconds = 0.005;

// Times on the device of `roofs`: forward and, where there is one, backward, with the least time
// that the roofs allow as a share of each.
std::vector<CompareTime> against_roofs(const LayerTiming& timing, DType dtype,
                                       const CompareDevice& roofs);
// The same, measured: medians of `repeats`. The layer's own launches say the bytes and operations;
// operands are in a cache where they fit one.
std::vector<CompareTime> times_of(const ComparedLayer& layer, const CompareDevice& roofs,
                                  int repeats);

}  // namespace gradus
