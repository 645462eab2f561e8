// One normalization, five names. BatchNorm, InstanceNorm, GroupNorm, LayerNorm and RMSNorm are one
// formula over different sets of elements; each set has m elements and statistics of its own.
//
//   layer          the set that shares one mean and rstd                    m        gamma over it
//   batch_norm     channel c over all samples and positions: x[·, c, ·]     n·s      one number
//   instance_norm  channel c of one sample: x[n, c, ·]                      s        one number
//   group_norm     c/g neighbouring channels of one sample                  c/g·s    varies
//   layer_norm     one row: the last axes of x                              d        varies
//   rms_norm       one row, without the mean                                d        varies
//
// forward
//   mean = Σ x / m                   rms_norm: mean = 0
//   var  = Σ (x - mean)² / m         biased; rms_norm: the mean square
//   rstd = 1 / sqrt(var + eps)
//   xhat = (x - mean)·rstd
//   y    = gamma·xhat + beta
//
// backward: mean and rstd depend on every x of the set, which adds two terms to the direct one
//   d    = dy·gamma
//   m1   = Σ d / m         how far moving the whole set moves the loss: the mean takes that away
//   m2   = Σ d·xhat / m    how far stretching the set moves the loss: the variance takes that away
//   dx   = rstd·(d - m1 - xhat·m2)       rms_norm: without m1, since there is no mean
//   dgamma = Σ dy·xhat,  dbeta = Σ dy    over all elements that share that gamma and beta
//
// The terms of dx by name: direct = rstd·d, mean = -rstd·m1, projection = -rstd·xhat·m2. gamma
// stays inside m1 and m2: it may be pulled out only where it is one number for the whole set.
//
// The sums of a set run over m; dgamma and dbeta are sums over samples as well, which m is not.
// Statistics are taken in two passes or by merging (count, mean, M2), never as E[x²] - E[x]²
// (docs/numerics.md).
#pragma once

#include <algorithm>
#include <limits>

#include "core/host_device.h"

namespace gradus {

// eps beside variances of type S: above 0 it is one of S's numbers at least, so that rstd is one.
template <class S>
double norm_eps(double eps) {
  return eps > 0 ? std::max<double>(eps, std::numeric_limits<S>::denorm_min()) : eps;
}

// The mean to save, and to add to a running one: NaN where the variance is, which is where the set
// has a NaN or an infinity. The sum itself may be infinite there, depending on its order.
template <class S>
GRADUS_HD S norm_saved_mean(S mean, S var) {
  return var != var ? var : mean;
}

// The formulas of one element, for numbers and for vectors of the CPU alike (V: either, S: either);
// the last two are the same with the factors of a whole channel multiplied out.

template <class V, class S>
GRADUS_HD V norm_xhat(V x, S mean, S rstd) {
  return (x - mean) * rstd;
}

// direct + mean + projection.
template <class V, class S>
GRADUS_HD V norm_dx(V d, V xhat, S rstd, S m1, S m2) {
  return rstd * (d - m1 - xhat * m2);
}

// y, with scale = rstd·gamma.
template <class V, class S>
GRADUS_HD V norm_scaled(V x, S mean, S scale, S beta) {
  return (x - mean) * scale + beta;
}

// dx, with scale = rstd·gamma, shift = rstd·m1 and stretch = rstd²·m2.
template <class S>
struct NormGradient {
  S mean, scale, shift, stretch;

  GRADUS_HD S operator()(S x, S dy) const { return scale * dy - shift - (x - mean) * stretch; }
};

}  // namespace gradus
