// RMS normalization: layer normalization without the mean. Each row is divided by its root mean
// square.
//
// x is [rows, m] as in core/ops/layer_norm.h. The set of row r: x[r, ·].
//
//   rstd = 1 / sqrt(Σ x² / m + eps)
//   xhat = x·rstd
//   y    = gamma·xhat
//
//   dx = rstd·(d - xhat·m2) with d = dy·gamma, m2 = mean(d·xhat) over the row: no m1, since moving
//   every x of a row is not taken away here; gamma varies within the set and stays inside m2
//   dgamma = Σ dy·xhat over the rows
//
// Why each term is there: core/ops/normalization.h.
// Source: Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467, section 3.
//
// Saved for backward: x, rstd. Without rows dgamma is 0; rows without elements have no statistics.
#pragma once

#include "core/backend.h"
#include "core/ops/normalization.h"

namespace gradus {

struct RmsNormForward {
  static constexpr std::string_view name = "rms_norm_forward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView x;      // [rows, m], dense
  AnyView gamma;  // [m], acc; may be not given (1)
  AnyView y;      // like x
  AnyView rstd;   // [rows], acc, written
  double eps = 1e-5;

  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, gamma, y, rstd); }
  int64_t bytes() const { return x.nbytes() + y.nbytes(); }
  int64_t flops() const { return 4 * x.numel(); }
  static Guarantee guarantee() { return {}; }
};

struct RmsNormBackward {
  static constexpr std::string_view name = "rms_norm_backward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView x;       // [rows, m], dense
  AnyView dy;      // like x
  AnyView gamma;   // [m], acc; may be not given
  AnyView rstd;    // [rows], acc, as saved
  AnyView dx;      // like x; may be not given
  AnyView dgamma;  // [m], acc; may be not given

  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, dy, gamma, rstd, dx, dgamma); }
  int64_t bytes() const { return x.nbytes() + dy.nbytes() + dx.nbytes(); }
  int64_t flops() const { return 9 * x.numel(); }
  static Guarantee guarantee() { return {}; }
};

void run(Cpu&, const RmsNormForward&);
void run(Cpu&, const RmsNormBackward&);
void run(Cuda&, const RmsNormForward&);
void run(Cuda&, const RmsNormBackward&);

}  // namespace gradus
