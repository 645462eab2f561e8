// Tests that run on the CPU and, where there is one, on the GPU.
//
//   class Sum : public test::EachDevice {};  // GetParam() is the device
//   GRADUS_ON_EACH_DEVICE(Sum);
//   TEST_P(Sum, OfOne) { ... }
#pragma once

#include <gtest/gtest.h>

#include "core/device.h"
#include "tests/support/gpu.h"

namespace gradus::test {

class EachDevice : public testing::TestWithParam<Device> {
 protected:
  void SetUp() override { GRADUS_SKIP_WITHOUT(GetParam()); }
};

}  // namespace gradus::test

#define GRADUS_ON_EACH_DEVICE(Suite)                                    \
  INSTANTIATE_TEST_SUITE_P(                                             \
      Devices, Suite, testing::Values(::gradus::kCpu, ::gradus::kCuda), \
      [](const auto& info) { return info.param == ::gradus::kCpu ? "Cpu" : "Cuda"; })
