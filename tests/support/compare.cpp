#include "tests/support/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gradus {
namespace {

// Mantissa bits (without the hidden one), smallest normal exponent and largest finite value.
struct Format {
  int bits;
  int min_exponent;
  double largest;
};

// In the order of DType.
constexpr Format kFormats[] = {{23, -126, std::numeric_limits<float>::max()},
                               {52, -1022, std::numeric_limits<double>::max()},
                               {10, -14, 65504.0},
                               {7, -126, 0x1.FEp127}};

const Format& format_of(DType dtype) { return kFormats[static_cast<int>(dtype)]; }

double unit_roundoff(DType dtype) { return std::ldexp(1.0, -format_of(dtype).bits - 1); }

double largest_finite(std::span<const double> values) {
  double largest = 0;
  for (const double value : values) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return largest;
}

}  // namespace

double ulp(double value, DType dtype) {
  if (!is_floating(dtype)) return 1;
  const Format& format = format_of(dtype);
  const double magnitude =
      std::abs(value) < format.largest ? std::abs(value) : format.largest;  // NaN too
  const int exponent = magnitude == 0 ? format.min_exponent : std::ilogb(magnitude);
  return std::ldexp(1.0, std::max(exponent, format.min_exponent) - format.bits);
}

double round_to(double value, DType dtype) {
  if (!is_floating(dtype)) return std::nearbyint(value);
  if (!std::isfinite(value) || dtype == DType::f64) return value;
  const Format& format = format_of(dtype);
  const double step = ulp(value, dtype);
  const double rounded = std::nearbyint(value / step) * step;
  if (std::abs(rounded) > format.largest) {
    return std::copysign(std::numeric_limits<double>::infinity(), value);
  }
  return rounded;
}

Tolerance tolerance(DType dtype, int64_t reduction_length, Products products) {
  if (!is_floating(dtype)) return {};
  const double u_acc = unit_roundoff(acc_dtype(dtype));
  Tolerance result;
  result.relative = 2 * unit_roundoff(dtype);
  if (reduction_length == 0) {
    result.relative += 4 * u_acc;
  } else {
    result.of_scale = u_acc * (8 + std::sqrt(static_cast<double>(reduction_length)));
  }
  result.absolute = ulp(0.0, dtype);
  // Two factors with 10 mantissa bits each: the errors of the products average out over the sum.
  if (products == Products::tf32) result.of_scale += 2 * std::ldexp(1.0, -11);
  return result;
}

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
  const double infinity = std::numeric_limits<double>::infinity();
  double worst_share = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))) continue;
    const double allowed = tolerance.relative * std::abs(want[i]) +
                           tolerance.of_scale * result.scale + tolerance.absolute;
    double error = std::abs(got[i] - want[i]);
    if (std::isinf(got[i]) && std::isfinite(want[i])) {
      // Right if the exact value, moved by what is allowed, rounds to this inf.
      const double reached = want[i] + std::copysign(allowed, want[i]);
      if (round_to(reached, dtype) == got[i]) error = 0;
    }
    double share = infinity;  // NaN or inf against something else
    if (error == 0) {
      share = 0;
    } else if (std::isfinite(error) && allowed > 0) {
      share = error / allowed;
    }
    if (share > 1) ++result.violations;
    if (share <= worst_share) continue;
    worst_share = share;
    result.worst = static_cast<int64_t>(i);
    result.got = got[i];
    result.want = want[i];
    result.error = error;
    result.allowed = allowed;
    result.ulps = error / ulp(want[i], dtype);
    result.relative = want[i] == 0 ? infinity : error / std::abs(want[i]);
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
