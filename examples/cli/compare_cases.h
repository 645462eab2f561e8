// The cases of the ops as layers to be compared.
#pragma once

#include <optional>

#include "bench/cases/op_case.h"
#include "nn/compare/layer.h"

namespace gradus::cli {

struct CasesOptions {
  std::vector<std::string> layers;  // ops or functions of them ("gelu"); empty: all
  std::optional<Shape> shape;       // of x in place of the cases' own
  bool timed = true;                // one case more of each function, a benchmark, for its time
};

// Names that `layers` may hold.
std::vector<std::string> layer_names();

struct ComparedCases {
  std::vector<OpCase> cases;
  std::vector<std::string> left_out;  // functions that take no x of the shape
};

// The cases that are asked for; with a shape, those that take it, one of each function. Throws
// invalid_argument, saying what the op says, where a layer that was named takes no such shape.
ComparedCases compared_cases(const CasesOptions& options);

// A case with drawn values in `dtype`.
ComparedLayer layer_of(const OpCase& op_case, DType dtype, uint64_t seed);

}  // namespace gradus::cli
