// Two normal numbers from one block of random bits, by the transform of Box and Muller 1958
// (https://doi.org/10.1214/aoms/1177706645):
//   r = sqrt(-2 ln u),  r·cos(2πv),  r·sin(2πv),   u uniform in (0, 1], v in [0, 1)
//
// ln, sin and cos are written out in f64 with nothing but correctly rounded operations and explicit
// fma, so that every compiler and device gives the same bits. Their error is below 2 units in the
// last place of f64; r is at most 8.58.
#pragma once

#include <cmath>
#include <cstring>

#include "core/random.h"

namespace gradus {

// a·b + c rounded once, by the function of the operands' own type on every compiler.
#ifdef __CUDA_ARCH__
GRADUS_HD float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
GRADUS_HD double fused(double a, double b, double c) { return __fma_rn(a, b, c); }
#else
GRADUS_HD float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
GRADUS_HD double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }
#endif

namespace detail {

// ln(k · 2^-53), k in [1, 2^53].
GRADUS_HD double log_of_fraction(uint64_t k) {
  const double value = static_cast<double>(k);  // exact
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  double exponent = static_cast<double>(static_cast<int>(bits >> 52) - 1023 - 53);
  bits = (bits & 0x000FFFFFFFFFFFFFu) | 0x3FF0000000000000u;
  double m;  // in [1, 2), then in [sqrt(1/2), sqrt(2)]
  memcpy(&m, &bits, sizeof m);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    exponent += 1.0;
  }
  // ln m = 2 artanh(s) = 2 (s + s^3/3 + s^5/5 + ...), |s| < 0.172
  const double s = (m - 1.0) / (m + 1.0);
  const double s2 = s * s;
  double p = 1.0 / 23;
  p = fused(p, s2, 1.0 / 21);
  p = fused(p, s2, 1.0 / 19);
  p = fused(p, s2, 1.0 / 17);
  p = fused(p, s2, 1.0 / 15);
  p = fused(p, s2, 1.0 / 13);
  p = fused(p, s2, 1.0 / 11);
  p = fused(p, s2, 1.0 / 9);
  p = fused(p, s2, 1.0 / 7);
  p = fused(p, s2, 1.0 / 5);
  p = fused(p, s2, 1.0 / 3);
  const double twice = s * 2.0;
  const double tail = fused(twice * s2, p, exponent * 1.9082149292705877e-10);  // ln 2, lower part
  return fused(exponent, 6.93147180369123816490e-01, twice + tail);             // upper part
}

// cos and sin of 2π·k·2^-53, k in [0, 2^53).
GRADUS_HD void cos_sin_of_fraction(uint64_t k, double& cosine, double& sine) {
  const int octant = static_cast<int>(k >> 50);
  const uint64_t rest = k & ((uint64_t{1} << 50) - 1);
  // The angle to the nearest axis, in [0, π/4]: odd octants are measured from their upper end.
  const uint64_t steps = octant % 2 == 0 ? rest : (uint64_t{1} << 50) - rest;
  const double x = static_cast<double>(steps) * (0.78539816339744830962 * 0x1p-50);
  const double x2 = x * x;
  double s = -1.0 / 1307674368000.0;  // 1/15!
  s = fused(s, x2, 1.0 / 6227020800.0);
  s = fused(s, x2, -1.0 / 39916800.0);
  s = fused(s, x2, 1.0 / 362880.0);
  s = fused(s, x2, -1.0 / 5040.0);
  s = fused(s, x2, 1.0 / 120.0);
  s = fused(s, x2, -1.0 / 6.0);
  s = fused(x * x2, s, x);
  double c = 1.0 / 20922789888000.0;  // 1/16!
  c = fused(c, x2, -1.0 / 87178291200.0);
  c = fused(c, x2, 1.0 / 479001600.0);
  c = fused(c, x2, -1.0 / 3628800.0);
  c = fused(c, x2, 1.0 / 40320.0);
  c = fused(c, x2, -1.0 / 720.0);
  c = fused(c, x2, 1.0 / 24.0);
  c = fused(c, x2, -0.5);
  c = fused(c, x2, 1.0);
  // Octants 1, 2, 5 and 6 lie nearer to the vertical axis.
  const bool is_swapped = ((octant + 1) & 2) != 0;
  cosine = is_swapped ? s : c;
  sine = is_swapped ? c : s;
  if (octant >= 2 && octant < 6) cosine = -cosine;
  if (octant >= 4) sine = -sine;
}

}  // namespace detail

GRADUS_HD void box_muller(const Philox4& block, double& first, double& second) {
  const uint64_t u = (uint64_t{block.words[0]} << 32 | block.words[1]) >> 11;
  const uint64_t v = (uint64_t{block.words[2]} << 32 | block.words[3]) >> 11;
  const double radius = sqrt(-2.0 * detail::log_of_fraction(u + 1));
  double cosine, sine;
  detail::cos_sin_of_fraction(v, cosine, sine);
  first = radius * cosine;
  second = radius * sine;
}

}  // namespace gradus
