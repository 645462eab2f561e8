// A tensor as the bytes that files hold: row-major, little-endian, on the host.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/tensor.h"

namespace gradus::nn {

std::vector<std::byte> to_bytes(const Tensor& tensor);

// A new tensor on the CPU; throws invalid_argument unless the bytes fit the shape.
Tensor from_bytes(std::span<const std::byte> bytes, DType dtype, const Shape& shape);

}  // namespace gradus::nn
