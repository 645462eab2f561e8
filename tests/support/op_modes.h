// Runs every OpCase of an op in the modes that each op owes:
//
//   GRADUS_TEST_OP_CASES(batch_norm);
//
//   Reference   forward and every gradient against the naive f64 reference, in all dtypes and on
//               both devices, each value within its tolerance,
//               under guard bands and NaN-filled buffers
//   Repeat      the same bits from two runs, and on the CPU from 1, 2 and 3 threads
//   Gradcheck   gradients against finite differences of the op itself, f64, small cases
//
// CUDA variants skip, with the reason, where there is no GPU.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "bench/cases/draw.h"
#include "tests/support/compare.h"

namespace gradus {

// How GoogleTest, and so ctest, prints parameters of tests; found by argument-dependent look-up.
inline void PrintTo(const Device& device, std::ostream* out) { *out << to_string(device); }
inline void PrintTo(const OpCase& op_case, std::ostream* out) { *out << op_case.name; }

struct CaseRun {
  Tensor y;
  std::vector<Tensor> grads;  // of each value and parameter input, in order
};

// Forward, and backward from dy if it is not empty.
CaseRun run_case(const OpCase& op_case, std::span<const ref::Array> arrays, const ref::Array& dy,
                 DType dtype, Device device);
bool has_gpu();

void check_reference(const OpCase& op_case, Device device);
void check_repeat(const OpCase& op_case, Device device);
void check_gradients(const OpCase& op_case);

// Small cases of the op by index, for parameterised tests.
std::vector<OpCase> test_cases_of(std::string_view op);

}  // namespace gradus

#define GRADUS_TEST_OP_CASES(op)                                                             \
  class op##_cases : public testing::TestWithParam<gradus::OpCase> {};                       \
  TEST_P(op##_cases, Reference) { gradus::check_reference(GetParam(), gradus::kCpu); }       \
  TEST_P(op##_cases, Repeat) { gradus::check_repeat(GetParam(), gradus::kCpu); }             \
  TEST_P(op##_cases, Gradcheck) { gradus::check_gradients(GetParam()); }                     \
  TEST_P(op##_cases, CudaReference) { gradus::check_reference(GetParam(), gradus::kCuda); }  \
  TEST_P(op##_cases, CudaRepeat) { gradus::check_repeat(GetParam(), gradus::kCuda); }        \
  INSTANTIATE_TEST_SUITE_P(Cases, op##_cases, testing::ValuesIn(gradus::test_cases_of(#op)), \
                           [](const auto& info) { return info.param.name; })
