// The tail P(Z > z) of the normal distribution, for GELU and its gradient: in f64, and in f32 with
// as few operations as its accuracy allows, since a GPU computes them while memory moves.
#pragma once

#include "core/ops/activation_math.h"

namespace gradus {

// e^(-z²/2), in f64.
template <class V>
GRADUS_HD Two<V> gaussian(V z) {
  const V square = product_of(z, z), low = product_error(z, z, square);
  return exp_two(Two<V>{square * V(-0.5), low * V(-0.5)});
}

// factor·P(Z > z) / e^(-z²/2) of a normal Z in f64, for 0 <= z < infinity: erfcx(z/√2) / 2.
// (z + 4) times it is a polynomial in q = (z - 4) / (z + 4).
template <class V>
GRADUS_HD V normal_tail(V z, V factor) {
  // Exact though z may be the larger: what is left of it is a multiple of the sum's last place.
  const Two<V> sum = ordered_sum(V(4), z);
  const V q = quotient_of(ordered_sum(V(-4), z), sum);
  const V h = polynomial(
      q, 0.75528513041575149, -0.60789664197189231, 0.38713740074221454, -0.18652185795963532,
      0.060396574890936071, -0.0075401889674195652, -0.0034796923673884157, 0.0016308184678064445,
      0.00013334431270030784, -0.00023109501999200648, -1.9082650853426787e-6,
      3.5145122560125813e-5, 7.1672639787050157e-7, -5.9216388019788163e-6, -6.2999742651642218e-7,
      1.0248325060946323e-6, 2.7271760832623851e-7, -1.5982676610438677e-7, -8.7132946214674904e-8,
      1.7881872409503416e-8, 2.1604426842720405e-8, -6.0210037279514765e-10, -3.7980418599574493e-9,
      -1.1742107539247066e-10, 3.5156924266809301e-10);
  const V numerator = product_of(factor, h);
  return quotient_of(Two<V>{numerator, product_error(factor, h, numerator)}, sum);
}

// P(Z > z) of a normal Z in f32, for 0 <= z <= kMost: h·(reciprocal - rest)·e^(-z²/2), where
// e^(-z²/2) = 2^-48·scale·(1 + p). Results are 2^48 times what they are named after.
template <class V>
struct NormalTail {
  static constexpr float kMost = 14.75f;            // z·P(Z > z) and z·density(z) are 0 there
  static constexpr float kDensity = 0.3989422804f;  // at 0: 1/√(2π)
  static constexpr float kSlope = kMinusLog2E / 2, kSlopeLow = kMinusLog2ELow / 2;

  V z, h, reciprocal, rest, p, scale;

  GRADUS_HD explicit NormalTail(V z) : z(z) {
    constexpr float to_integer = kToInteger<float> + 48;
    const V square = product_of(z, z), square_low = product_error(z, z, square);
    const V shifted = fused(square, V(kSlope), V(to_integer)), n = shifted - V(to_integer);
    const V high_part = product_error(square, V(kSlope), n);
    p = power_minus_one(fused(square_low, V(kSlope), fused(square, V(kSlopeLow), high_part)));
    scale = power_of_two(shifted);
    const Two<V> sum = ordered_sum(V(4), z);  // exact, as above
    reciprocal = reciprocal_of(sum.high);
    rest = reciprocal * fused(sum.low, reciprocal, product_error(sum.high, reciprocal, V(1)));
    // (z + 4)·P(Z > z) / e^(-z²/2), within 2^-26.7 but for what rounds the coefficients.
    const V q = fused(V(8), rest, fused(V(-8), reciprocal, V(1)));  // (z - 4) / (z + 4)
    h = polynomial(q, 0.7552851353, -0.607896584, 0.3871369084, -0.1865235515, 0.06040366292,
                   -0.00752461525, -0.003511369231, 0.001569118509, 0.0001769370726,
                   -0.0001331110171);
  }
  // z·P(Z > z).
  GRADUS_HD V product() const {
    const V m = product_of(z, h), share = product_of(m, reciprocal);
    const V lost = fused(-m, rest, product_error(m, reciprocal, share));
    return (share + fused(share, p, lost)) * scale;
  }
  // P(Z > z) - z·density(z), whose terms are taken together: near z = 0.75 they cancel.
  GRADUS_HD V bend() const {
    const V share = fused(z, V(-kDensity), product_of(h, reciprocal - rest));
    return fused(share, p, share) * scale;
  }
};

}  // namespace gradus
