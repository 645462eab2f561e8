// Skips a test, with the reason, where the device that it needs is missing.
#pragma once

#include <gtest/gtest.h>

#include "tests/support/op_modes.h"

#define GRADUS_SKIP_WITHOUT(needed)                                                  \
  do {                                                                               \
    const ::gradus::Device needed_ = needed;                                         \
    if (needed_ != ::gradus::kCpu && !::gradus::has_gpu()) GTEST_SKIP() << "no GPU"; \
  } while (false)

namespace gradus::test {

// The base of suites of which every test needs a GPU.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override { GRADUS_SKIP_WITHOUT(kCuda); }
};

}  // namespace gradus::test
