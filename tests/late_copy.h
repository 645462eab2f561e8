// A copy that lets the next launch start long before it stores, for tests of launches that overlap.
#pragma once

#include "cuda/context.h"

namespace gradus::test {

// Copies `bytes`, a multiple of 16, about 100 us after the next launch was let start, where kernels
// can do that.
void late_copy(Cuda&, void* to, const void* from, int64_t bytes);

// A copy that may start before the launch before it has ended; it waits for that, or reads what is
// there.
void overlapping_copy(Cuda&, void* to, const void* from, int64_t bytes, bool waits);

}  // namespace gradus::test
