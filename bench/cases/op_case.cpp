#include "bench/cases/op_case.h"

#include "core/error.h"

namespace gradus {

// Each bench/cases/<op>.cpp defines std::vector<OpCase> <op>_cases(); CMake writes the list.
#define GRADUS_CASES(op) std::vector<OpCase> op##_cases();
#include "gradus_cases.inc"
#undef GRADUS_CASES

namespace {

std::vector<OpCase> labelled(std::vector<OpCase> cases, std::string_view op) {
  for (OpCase& op_case : cases) {
    op_case.op = op;
    if (op_case.function.empty()) op_case.function = op;
  }
  return cases;
}

}  // namespace

std::vector<OpCase> cases_of(std::string_view name) {
#define GRADUS_CASES(op) \
  if (name == #op) return labelled(op##_cases(), #op);
#include "gradus_cases.inc"
#undef GRADUS_CASES
  fail(ErrorCode::invalid_argument, "cases", "there is no op with cases called ", name);
}

OpCase resized(const OpCase& op_case, const Shape& x) {
  OpCase result = op_case.of_shape(x);
  result.op = op_case.op;
  result.function = op_case.function;
  result.benchmark = op_case.benchmark;
  result.forward_passes = op_case.forward_passes;
  result.backward_passes = op_case.backward_passes;
  return result;
}

std::vector<std::string> ops_with_cases() {
  return {
#define GRADUS_CASES(op) #op,
#include "gradus_cases.inc"
#undef GRADUS_CASES
  };
}

}  // namespace gradus
