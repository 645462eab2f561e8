// Claimed gradients for tests of the diagnosis.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "autograd/explain/diagnosis.h"
#include "autograd/explain/library.h"
#include "tests/support/text.h"

namespace gradus::test {

using Values = std::vector<double>;

inline bool has(const std::vector<explain::Slip>& slips, explain::Slip slip) {
  return std::ranges::find(slips, slip) != slips.end();
}

// value(v, i) of each element v, number i.
Tensor mapped(const Tensor& tensor, auto value) {
  Values values = tensor.to_vector<double>();
  for (size_t i = 0; i < values.size(); ++i) values[i] = value(values[i], i);
  return Tensor::from_vector(values, tensor.shape());
}
inline Tensor scaled(const Tensor& tensor, double factor) {
  return mapped(tensor, [&](double v, size_t) { return factor * v; });
}

inline explain::Claim library_claim(const explain::Setting& setting, const explain::Inputs& inputs,
                                    DType dtype = DType::f64) {
  const explain::Library library = run_library(setting, inputs);
  const auto cast = [&](const Tensor& t) { return t.defined() ? t.to(dtype) : Tensor(); };
  return {cast(library.dx), cast(library.dgamma), cast(library.dbeta)};
}

}  // namespace gradus::test
