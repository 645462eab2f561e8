#include "nn/compare/measure.h"

#include <algorithm>
#include <cmath>

namespace gradus {
namespace {

// Squares of such values, a million of them, are beyond f32.
bool is_extreme(double value) { return !(std::abs(value) <= 0x1p50); }

// The histogram's bins by their upper ends, of which the last is infinite.
class Bins {
 public:
  Bins() {
    for (int bin = 0; bin < kUlpBins; ++bin) edges_[bin] = ulp_edge(bin);
  }
  size_t of(double ulps) const {
    if (!(ulps <= edges_[kUlpBins - 2])) return kUlpBins - 1;  // NaN too
    return static_cast<size_t>(std::ranges::lower_bound(edges_, ulps) - std::begin(edges_));
  }

 private:
  double edges_[kUlpBins];
};

}  // namespace

CompareError measure(std::span<const Numbers> got, size_t index, const Numbers& want, Device device,
                     DType dtype, const MeasureOptions& options) {
  const Numbers& values = got[index];
  check(values.size() == want.size(), "compare", "expected ", want.size(), " values, got ",
        values.size(), " on ", device);
  const double scale = std::max(options.scale, largest_size(want));
  const double least = options.for_itself ? 0 : scale;
  CompareError result{.device = device};
  const Bins bins;
  double ulps = 0, relatives = 0;
  int64_t finite = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double allowed = options.tolerance.at(want[i], scale);
    const double share = share_of_allowed(values[i], want[i], dtype, allowed);
    if (share > 1) ++result.beyond;
    if (is_extreme(values[i]) && is_extreme(want[i])) ++result.extreme;
    const double error = share == 0 ? 0 : std::abs(values[i] - want[i]);
    const double size = std::max(std::abs(want[i]), least);
    const double in_ulps = error == 0 ? 0 : error / ulp(size, dtype);
    ++result.histogram[bins.of(in_ulps)];
    if (std::isfinite(in_ulps)) {
      const double relative = error == 0 ? 0 : error / std::max(size, ulp(0.0, dtype));
      result.max_ulp = std::max(result.max_ulp, in_ulps);
      result.max_relative = std::max(result.max_relative, relative);
      ulps += in_ulps, relatives += relative, ++finite;
    }
    if (share <= result.of_allowed) continue;
    result.of_allowed = share;
    result.worst = static_cast<int64_t>(i);
    result.want = want[i];
    result.error = error;
    result.allowed = allowed;
  }
  result.ok = result.beyond == 0;
  if (finite > 0) {
    result.mean_ulp = ulps / static_cast<double>(finite);
    result.mean_relative = relatives / static_cast<double>(finite);
  }
  if (result.worst >= 0) {
    for (const Numbers& one : got) result.got.push_back(one[static_cast<size_t>(result.worst)]);
  }
  return result;
}

}  // namespace gradus
