// What the test run measures for docs/coverage.md: where the environment variable GRADUS_COVERAGE
// names a folder, lines of JSON are appended to files there; otherwise nothing is done.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "bench/cases/op_case.h"

namespace gradus {

enum class Direction : uint8_t {
  forward,     // y
  backward,    // gradients of values
  parameters,  // gradients of parameters, in acc_dtype
};

// The largest error of got against want, in units in the last place of `dtype` and relative, both
// at the larger of |want| and scale. Scale is 0 where nothing is added up, so that each value is
// judged for itself; else the largest term, as in the tolerance. Values that are not finite are
// left to the comparison.
struct MeasuredError {
  double ulp = 0;
  double relative = 0;
  int64_t values = 0;

  void add(std::span<const double> got, std::span<const double> want, DType dtype,
           const OpCase& op_case, Direction direction);
};

// One case in one dtype on one device; no error stands for a function without a gradient.
void record_coverage(const OpCase& op_case, DType dtype, Device device, Direction direction,
                     const std::optional<MeasuredError>& error);

// Every argument struct with its dtypes and promises.
void record_launches();

}  // namespace gradus
