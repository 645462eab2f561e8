#pragma once

#include <algorithm>
#include <vector>

namespace gradus::cli {

// Of one value at least; between the middle two of an even number.
inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace gradus::cli
