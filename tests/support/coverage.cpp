#include "tests/support/coverage.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/cases/launches.h"
#include "tests/support/compare.h"

namespace gradus {
namespace {

using Json = nlohmann::json;

// Lines of several processes may alternate: each is written at once.
void append(const std::string& file, const Json& line) {
  const char* folder = std::getenv("GRADUS_COVERAGE");
  if (folder == nullptr) return;
  std::ofstream out(std::string(folder) + "/" + file, std::ios::app);
  const std::string text = line.dump() + "\n";
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  check(static_cast<bool>(out.flush()), "coverage", "could not write to ", folder);
}

std::vector<std::string> names(DTypeSet set) {
  std::vector<std::string> result;
  for (const DType dtype :
       {DType::f32, DType::f64, DType::f16, DType::bf16, DType::u8, DType::i32, DType::i64}) {
    if (set.contains(dtype)) result.emplace_back(to_string(dtype));
  }
  return result;
}

}  // namespace

void MeasuredError::add(std::span<const double> got, std::span<const double> want, DType dtype,
                        const OpCase& op_case, Direction direction) {
  double scale = 0;
  const bool for_itself = op_case.pointwise && direction == Direction::forward;
  if (op_case.reduction > 0 && !for_itself) {
    scale = op_case.scale;
    for (const double value : want) {
      if (std::isfinite(value)) scale = std::max(scale, std::abs(value));
    }
  }
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    if (!std::isfinite(got[i]) || !std::isfinite(want[i])) continue;
    const double error = std::abs(got[i] - want[i]);
    const double size = std::max(std::abs(want[i]), scale);
    ulp = std::max(ulp, error / gradus::ulp(size, dtype));
    // Among subnormals the step stays the same, and a relative error says nothing.
    const bool normal = gradus::ulp(size, dtype) <= gradus::ulp(1, dtype) * size;
    if (normal && size > 0) relative = std::max(relative, error / size);
    ++values;
  }
}

void record_coverage(const OpCase& op_case, DType dtype, Device device, Direction direction,
                     const std::optional<MeasuredError>& error) {
  if (op_case.op.empty()) return;  // a case of a single test, not of an op
  constexpr std::string_view names[] = {"forward", "backward", "parameters"};
  Json line = {{"op", op_case.op},
               {"function", op_case.function},
               {"case", op_case.name},
               {"dtype", to_string(dtype)},
               {"device", device.type == DeviceType::cuda ? "cuda" : "cpu"},
               {"direction", names[static_cast<int>(direction)]}};
  if (error) {
    line["ulp"] = error->ulp;
    line["relative"] = error->relative;
    line["values"] = error->values;
  }
  append("cases.jsonl", line);
}

void record_launches() {
  for (const LaunchInfo& launch : all_launches()) {
    append("launches.jsonl", {{"op", launch.op},
                              {"name", launch.name},
                              {"cpu", names(launch.support.cpu)},
                              {"cuda", names(launch.support.cuda)},
                              {"accumulator", launch.guarantee.accumulator},
                              {"deterministic", launch.guarantee.deterministic}});
  }
}

}  // namespace gradus
