// Times of one benchmark case, forward and backward apart.
#pragma once

#include "bench/cases/op_case.h"
#include "nn/compare/layer_time.h"

namespace gradus::cli {

// The bytes of everything that the case reads, in `dtype`.
int64_t input_bytes(const OpCase& op_case, DType dtype);

// Medians as time_layer() takes them. Bytes are the fewest that the launches can move, or the
// case's passes over x. cold: each call finds its operands in memory, not in a cache (the calls
// rotate over copies of 400 MB in all, on a GPU at least four, since a kernel may have told the
// cache what to keep); else all calls use the same ones.
LayerTiming time_case(const OpCase& op_case, DType dtype, Device device, bool cold, int repeats,
                      double block_seconds = kBlockSeconds);

}  // namespace gradus::cli
