// Times of work on a device, without the host's share where the device can replay it.
#pragma once

#include <functional>
#include <vector>

#include "core/device.h"

namespace gradus {

// Of one value at least; between the middle two of an even number.
double median(std::vector<double> values);

// Median seconds of `step` over `repeats` blocks of about `block_seconds`, at least one call each.
double time_step(Device device, const std::function<void()>& step, int repeats,
                 double block_seconds = 0.02);

}  // namespace gradus
