// Errors of one tensor's values against the reference.
#pragma once

#include "core/tolerance.h"
#include "nn/compare/numbers.h"
#include "nn/compare/report.h"

namespace gradus {

struct MeasureOptions {
  Tolerance tolerance;
  double scale = 0;         // the largest term behind a value; 0: no more than the values
  bool for_itself = false;  // ulp at each value's own size: nothing is added up
};

// got: of each device, as many values as `want`; the errors are those of device `index`.
CompareError measure(std::span<const Numbers> got, size_t index, const Numbers& want, Device device,
                     DType dtype, const MeasureOptions& options);

}  // namespace gradus
