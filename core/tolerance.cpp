#include "core/tolerance.h"

#include <algorithm>
#include <bit>
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

// 2^e, as std::ldexp(1, e) many times as fast; e from -1074 on.
double power_of_two(int e) {
  const uint64_t bits =
      e >= -1022 ? static_cast<uint64_t>(e + 1023) << 52 : uint64_t{1} << (e + 1074);
  return std::bit_cast<double>(bits);
}

// Of a finite value that is not negative; -1023 below the normal numbers.
int exponent_of(double value) {
  return static_cast<int>(std::bit_cast<uint64_t>(value) >> 52) - 1023;
}

}  // namespace

double unit_roundoff(DType dtype) { return std::ldexp(1.0, -format_of(dtype).bits - 1); }

double largest_of(DType dtype) { return format_of(dtype).largest; }

double ulp(double value, DType dtype) {
  if (!is_floating(dtype)) return 1;
  const Format& format = format_of(dtype);
  const double magnitude =
      std::abs(value) < format.largest ? std::abs(value) : format.largest;  // NaN too
  return power_of_two(std::max(exponent_of(magnitude), format.min_exponent) - format.bits);
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

double share_of_allowed(double got, double want, DType dtype, double allowed) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (got == want || (std::isnan(got) && std::isnan(want))) return 0;
  if (std::isinf(got) && std::isfinite(want)) {
    // Right if the exact value, moved by what is allowed, rounds to this inf.
    const double reached = want + std::copysign(allowed, want);
    return round_to(reached, dtype) == got ? 0 : infinity;
  }
  const double error = std::abs(got - want);
  return std::isfinite(error) && allowed > 0 ? error / allowed : infinity;
}

}  // namespace gradus
