#include "tests/support/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gradus {
namespace {

double largest_finite(std::span<const double> values) {
  double largest = 0;
  for (const double value : values) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return largest;
}

}  // namespace

Comparison compare(std::span<const double> got, std::span<const double> want, DType dtype,
                   const Tolerance& tolerance, double scale) {
  Comparison result;
  result.scale = std::max(scale, largest_finite(want));
  if (got.size() != want.size()) {
    result.ok = result.same_size = false;
    result.got = static_cast<double>(got.size());
    result.want = static_cast<double>(want.size());
    return result;
  }
  result.count = static_cast<int64_t>(want.size());
  double worst_share = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double allowed = tolerance.at(want[i], result.scale);
    const double share = share_of_allowed(got[i], want[i], dtype, allowed);
    if (share > 1) ++result.violations;
    if (share <= worst_share) continue;
    worst_share = share;
    result.worst = static_cast<int64_t>(i);
    result.got = got[i];
    result.want = want[i];
    result.error = std::abs(got[i] - want[i]);
    result.allowed = allowed;
    result.ulps = result.error / ulp(want[i], dtype);
    result.relative =
        want[i] == 0 ? std::numeric_limits<double>::infinity() : result.error / std::abs(want[i]);
  }
  result.ok = result.violations == 0;
  return result;
}

Comparison compare(std::span<const double> got, std::span<const double> want, DType dtype,
                   int64_t reduction_length, double scale) {
  return compare(got, want, dtype, tolerance(dtype, reduction_length), scale);
}

std::string Comparison::text() const {
  if (!same_size) return concat("sizes differ: got ", got, " values, want ", want);
  if (worst < 0) return concat(count, " values equal");
  return concat(violations, " of ", count, " values off; worst at ", worst, ": got ", got,
                ", want ", want, ", error ", error, " (", ulps, " ulp, relative ", relative,
                "), allowed ", allowed, " at scale ", scale);
}

}  // namespace gradus
