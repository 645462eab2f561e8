// Broadcasting for the references: index arithmetic of its own, apart from the library's strides.
#pragma once

#include "tests/support/reference_array.h"

namespace gradus::ref {

// The shape that both read as; axes are aligned at the back, extents equal or 1.
Shape broadcast(const Shape& a, const Shape& b);

// Flat index, in an array of `shape`, of the element that `index` of an array of `target` reads.
int64_t broadcast_index(int64_t index, const Shape& target, const Shape& shape);

}  // namespace gradus::ref
