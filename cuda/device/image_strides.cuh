// Element strides of a [n, c, h, w] tensor, as kernels that take any layout get them.
#pragma once

#include <cstdint>

namespace gradus {

struct ImageStrides {
  int64_t n = 0, c = 0, h = 0, w = 0;
};

}  // namespace gradus
