// How a loss per row becomes the loss.
#pragma once

#include <cstdint>

namespace gradus {

enum class Reduction : uint8_t { none, mean, sum };

}  // namespace gradus
