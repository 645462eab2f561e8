// Group normalization: one mean and one variance per sample and group of neighbouring channels.
// With one group per channel it is instance normalization.
//
// The set (n, group): the m = c/g·s elements x[n, group·c/g ... , ·] (s = product of the axes after
// the channel). Formulas and letters: core/ops/normalization.h, with
//
//   dgamma[c] = Σ_n Σ_s dy·xhat,   dbeta[c] = Σ_n Σ_s dy
//   m1 = Σ_c gamma[c]·(Σ_s dy) / m,   m2 = Σ_c gamma[c]·(Σ_s dy·xhat) / m
//
// so that one pair of sums per sample and channel gives all four: both backends form that pair,
// add it over the channels of the set for m1 and m2, and over the samples for dgamma and dbeta.
// Source: Wu and He 2018, https://arxiv.org/abs/1803.08494, section 3.
//
// Saved for backward: x, mean, rstd. A set of one element gives xhat = 0, and so y = beta, dx = 0
// and dgamma = 0, whatever the number of samples; sets without elements have mean = rstd = 0.
#pragma once

#include "core/backend.h"
#include "core/ops/normalization.h"

namespace gradus {

// x as the kernels see it: [n, c, s] for contiguous, [n, s, c] for channels-last tensors.
struct GroupNormGeometry {
  int64_t n = 0;
  int64_t c = 0;
  int64_t s = 0;
  int64_t g = 1;
  bool channels_last = false;  // never where both formats are one (c = 1 or s = 1)

  int64_t channels() const { return c / g; }    // of one group
  int64_t m() const { return channels() * s; }  // elements of one set
  int64_t sets() const { return n * g; }
};

GroupNormGeometry group_norm_geometry(const AnyView& x, int64_t groups);

struct GroupNormForward {
  static constexpr std::string_view name = "group_norm_forward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView x;           // [n, c, ...], rank 2 to 5, contiguous or channels-last
  AnyView gamma;       // [c], acc; may be not given (1)
  AnyView beta;        // [c], acc; may be not given (0)
  AnyView y;           // like x
  AnyView mean;        // [n, g], acc, written
  AnyView rstd;        // [n, g], acc, written
  AnyView var;         // [n, g], acc, the biased variance; may be not given
  int64_t groups = 1;  // divides c
  double eps = 1e-5;

  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, gamma, beta, y, mean, rstd, var); }
  int64_t bytes() const { return x.nbytes() + y.nbytes(); }
  int64_t flops() const { return 7 * x.numel(); }
  static Guarantee guarantee() { return {}; }
};

struct GroupNormBackward {
  static constexpr std::string_view name = "group_norm_backward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView x;       // [n, c, ...]
  AnyView dy;      // like x
  AnyView gamma;   // [c], acc; may be not given
  AnyView mean;    // [n, g], acc, as saved
  AnyView rstd;    // [n, g], acc, as saved
  AnyView dx;      // like x; may be not given
  AnyView dgamma;  // [c], acc; may be not given
  AnyView dbeta;   // [c], acc; may be not given
  int64_t groups = 1;

  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, dy, gamma, mean, rstd, dx, dgamma, dbeta); }
  int64_t bytes() const { return x.nbytes() + dy.nbytes() + dx.nbytes(); }
  int64_t flops() const { return 9 * x.numel(); }
  static Guarantee guarantee() { return {}; }
};

void run(Cpu&, const GroupNormForward&);
void run(Cpu&, const GroupNormBackward&);
void run(Cuda&, const GroupNormForward&);
void run(Cuda&, const GroupNormBackward&);

}  // namespace gradus
