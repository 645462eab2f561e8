// Whether the diagnosis of a mutant's gradients names the mutant.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "autograd/explain/diagnosis.h"
#include "tests/support/reference_array.h"

namespace gradus::test {

inline Tensor as_f64(const ref::Array& array) {
  return array.empty() ? Tensor() : Tensor::from_vector(array.data, array.shape);
}

// Every finding is right or the slip, and with a slip at least one is it.
inline testing::AssertionResult names(const explain::Setting& setting,
                                      const explain::Inputs& inputs, const explain::Claim& claim,
                                      explain::Slip slip) {
  const explain::Diagnosis diagnosis = explain::diagnose(setting, inputs, claim);
  bool named = slip == explain::Slip::none;
  bool others = false;
  for (const explain::Finding& finding : diagnosis.findings) {
    const bool here = finding.slip == slip || std::ranges::count(finding.also, slip) > 0;
    named = named || here;
    others = others || (!here && finding.slip != explain::Slip::none);
  }
  if (named && !others) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "expected " << explain::to_string(slip) << ", got\n"
                                     << diagnosis.text();
}

}  // namespace gradus::test
