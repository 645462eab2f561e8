// What tests of optimizers share.
#pragma once

#include <gtest/gtest.h>

#include "core/tensor.h"
#include "tests/support/each_device.h"

namespace gradus::test {

inline Tensor parameter(const std::vector<double>& values, const Shape& shape, DType dtype,
                        Device device) {
  return Tensor::from_vector(values, shape, {.dtype = dtype, .device = device})
      .set_requires_grad(true);
}

inline Tensor parameter(const std::vector<double>& values, DType dtype, Device device) {
  return parameter(values, {static_cast<int64_t>(values.size())}, dtype, device);
}

inline void set_gradient(Tensor& p, const std::vector<double>& values) {
  p.set_grad(Tensor::from_vector(values, p.shape(), {.dtype = p.dtype(), .device = p.device()}));
}

}  // namespace gradus::test
