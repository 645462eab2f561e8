// Which data the second-level cache can hold. Host-only.
#pragma once

#include "cuda/context.h"

namespace gradus {

// Whether bytes that are read once more, or beside as many that are written, find room there.
inline bool fits_l2(const Cuda& cuda, int64_t bytes) { return bytes <= cuda.info().l2_bytes; }

}  // namespace gradus
