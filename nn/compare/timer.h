// Times of work on a device, without the host's share where the device can replay it.
#pragma once

#include <functional>
#include <vector>

#include "core/device.h"

namespace gradus {

// Of a measurement, of which several make a median.
inline constexpr double kBlockSeconds = 0.01;

// Of one value at least; between the middle two of an even number.
double median(std::vector<double> values);

// Median seconds of `step` over `repeats` blocks of about `block_seconds`, at least one call each.
double time_step(Device device, const std::function<void()>& step, int repeats,
                 double block_seconds = kBlockSeconds);

// Median seconds of one of the `calls` calls that `step` makes. On a GPU the step is recorded and
// replayed, so that the host's share does not count; one that cannot be recorded (it waits for the
// device, say) is timed as it is.
double time_captured(Device device, const std::function<void()>& step, int64_t calls, int repeats,
                     double block_seconds = kBlockSeconds);

}  // namespace gradus
