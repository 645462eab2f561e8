#include "nn/compare/measure.h"

#include <algorithm>
#include <cmath>

namespace gradus {
namespace {

// Squares of such values, 2^28 of them, are beyond f32.
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

// The errors of some of the values, and what their means are of.
struct Part {
  CompareError error;
  double ulps = 0, relatives = 0;
  int64_t finite = 0;
};

// The next part behind `to`; of equally bad values the first is the worst.
void merge(Part& to, const Part& next) {
  CompareError& error = to.error;
  error.beyond += next.error.beyond, error.extreme += next.error.extreme;
  for (size_t bin = 0; bin < kUlpBins; ++bin) error.histogram[bin] += next.error.histogram[bin];
  error.max_ulp = std::max(error.max_ulp, next.error.max_ulp);
  error.max_relative = std::max(error.max_relative, next.error.max_relative);
  to.ulps += next.ulps, to.relatives += next.relatives, to.finite += next.finite;
  if (next.error.of_allowed <= error.of_allowed) return;
  error.of_allowed = next.error.of_allowed;
  error.worst = next.error.worst;
  error.want = next.error.want;
  error.error = next.error.error;
  error.allowed = next.error.allowed;
}

// The values [i, end), whose largest terms are of this scale.
Part measure_part(const Numbers& got, const Numbers& want, size_t i, size_t end, double scale,
                  DType dtype, const MeasureOptions& options) {
  const double least = options.for_itself ? 0 : scale, smallest = ulp(0.0, dtype);
  const Bins bins;
  Part part;
  CompareError& result = part.error;
  for (; i < end; ++i) {
    const double allowed = options.tolerance.at(want[i], scale);
    const double share = share_of_allowed(got[i], want[i], dtype, allowed);
    if (share > 1) ++result.beyond;
    if (is_extreme(got[i]) && is_extreme(want[i])) ++result.extreme;
    const double error = share == 0 ? 0 : std::abs(got[i] - want[i]);
    const double size = std::max(std::abs(want[i]), least);
    const double in_ulps = error == 0 ? 0 : error / ulp(size, dtype);
    ++result.histogram[bins.of(in_ulps)];
    if (std::isfinite(in_ulps)) {
      const double relative = error == 0 ? 0 : error / std::max(size, smallest);
      result.max_ulp = std::max(result.max_ulp, in_ulps);
      result.max_relative = std::max(result.max_relative, relative);
      part.ulps += in_ulps, part.relatives += relative, ++part.finite;
    }
    if (share <= result.of_allowed) continue;
    result.of_allowed = share;
    result.worst = static_cast<int64_t>(i);
    result.want = want[i];
    result.error = error;
    result.allowed = allowed;
  }
  return part;
}

}  // namespace

CompareError measure(std::span<const Numbers> got, size_t index, const Numbers& want, Device device,
                     DType dtype, const MeasureOptions& options) {
  const Numbers& values = got[index];
  check(values.size() == want.size(), "compare", "expected ", want.size(), " values, got ",
        values.size(), " on ", device);
  const double scale = std::max(options.scale, largest_size(want));
  Part all;
  for (const Part& part : map_parts(want.size(), [&](size_t i, size_t end) {
         return measure_part(values, want, i, end, scale, dtype, options);
       }))
    merge(all, part);
  CompareError& result = all.error;
  result.device = device;
  result.ok = result.beyond == 0;
  if (all.finite > 0) {
    result.mean_ulp = all.ulps / static_cast<double>(all.finite);
    result.mean_relative = all.relatives / static_cast<double>(all.finite);
  }
  if (result.worst >= 0) {
    for (const Numbers& one : got) result.got.push_back(one[static_cast<size_t>(result.worst)]);
  }
  return result;
}

}  // namespace gradus
