// Values for a case, drawn on the host: the same on every device and under every dtype.
#pragma once

#include "bench/cases/op_case.h"
#include "core/tolerance.h"

namespace gradus {

// Inputs of a case as the dtype holds them: drawn from `seed`, rounded, back in f64.
std::vector<ref::Array> draw_inputs(const OpCase& op_case, DType dtype, uint64_t seed);
// The same arrays as tensors that ask for gradients.
std::vector<Tensor> make_inputs(const OpCase& op_case, std::span<const ref::Array> arrays,
                                DType dtype, Device device);
// An upstream gradient for y: normal, rounded to its dtype.
ref::Array draw_upstream(const Shape& shape, DType dtype, uint64_t seed);

// How far a gradient of a case may be off in `dtype`, for the reference's y and the upstream dy.
Tolerance gradient_tolerance(const OpCase& op_case, DType dtype, const ref::Array& y,
                             const ref::Array& dy);

}  // namespace gradus
