// What tests of optimizers share.
#pragma once

#include <gtest/gtest.h>

#include "core/tensor.h"
#include "tests/support/gpu.h"

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

// Tests that run on the CPU and, where there is one, on the GPU.
class EachDevice : public testing::TestWithParam<Device> {
 protected:
  void SetUp() override { GRADUS_SKIP_WITHOUT(GetParam()); }
};

}  // namespace gradus::test

#define GRADUS_ON_EACH_DEVICE(Suite)                                    \
  INSTANTIATE_TEST_SUITE_P(                                             \
      Devices, Suite, testing::Values(::gradus::kCpu, ::gradus::kCuda), \
      [](const auto& info) { return info.param == ::gradus::kCpu ? "Cpu" : "Cuda"; })
