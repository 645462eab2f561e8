// Times without the host's share: of one benchmark case, forward and backward apart, or of any
// call.
#pragma once

#include <functional>

#include "bench/cases/op_case.h"

namespace gradus::cli {

struct Timing {
  double ms = 0;                           // 0 where nothing was timed
  int64_t bytes = 0;                       // the fewest that the launches can move, or the case's
                                           // passes over x
  std::vector<std::string_view> launches;  // the names of their argument structs
};

struct LayerTimes {
  Timing forward, backward;  // backward.ms is 0 where the case has no gradient
};

// The bytes of everything that the case reads, in `dtype`.
int64_t input_bytes(const OpCase& op_case, DType dtype);

// Medians over `repeats` blocks of at least 20 ms; with 0 repeats each direction runs just once,
// for a profiler to look at. cold: each call finds its operands in memory, not in a cache (the
// calls rotate over copies of 400 MB in all); else all calls use the same ones.
LayerTimes time_layer(const OpCase& op_case, DType dtype, Device device, bool cold, int repeats);

// Median milliseconds of one of the `calls` calls that `step` makes, over `repeats` blocks of at
// least 20 ms; on a GPU the step is captured, so that the host's share does not count.
double time_calls(Device device, const std::function<void()>& step, int64_t calls, int repeats);

}  // namespace gradus::cli
