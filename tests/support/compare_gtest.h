// Comparison as a gtest assertion; the only place where compare meets gtest.
//
//   EXPECT_TRUE(agrees(got, want.data, DType::f32, m)) << "dx";
#pragma once

#include <gtest/gtest.h>

#include "tests/support/compare.h"

namespace gradus {

inline testing::AssertionResult assertion(const Comparison& result) {
  return (result ? testing::AssertionSuccess() : testing::AssertionFailure()) << result.text();
}

template <class... Arguments>
testing::AssertionResult agrees(std::span<const double> got, std::span<const double> want,
                                const Arguments&... arguments) {
  return assertion(compare(got, want, arguments...));
}

}  // namespace gradus
