// Layer normalization: one mean and one variance per row, over the row's elements.
//
// x is [rows, m]: the normalized axes, always the last ones, are flattened to m in the order in
// which memory holds them, and gamma and beta come in the same order. The set of row r: x[r, ·].
//
//   mean = Σ x / m                  xhat = (x - mean)·rstd
//   var  = Σ (x - mean)² / m        y    = gamma·xhat + beta
//   rstd = 1 / sqrt(var + eps)
//
//   dx = rstd·(d - m1 - xhat·m2) with d = dy·gamma, m1 = mean(d), m2 = mean(d·xhat) over the row:
//   gamma varies within the set and stays inside both
//   dgamma = Σ dy·xhat,  dbeta = Σ dy over the rows
//
// Why each term is there: core/ops/normalization.h.
// Source: Ba, Kiros and Hinton 2016, https://arxiv.org/abs/1607.06450, section 3.
//
// Saved for backward: x, mean, rstd (not xhat, which costs no bytes to compute again).
// Without rows dgamma and dbeta are 0; rows without elements have no statistics.
#pragma once

#include "core/backend.h"
#include "core/ops/normalization.h"

namespace gradus {

struct LayerNormForward {
  static constexpr std::string_view name = "layer_norm_forward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView x;      // [rows, m], dense
  AnyView gamma;  // [m], acc; may be not given (1)
  AnyView beta;   // [m], acc; may be not given (0)
  AnyView y;      // like x
  AnyView mean;   // [rows], acc, written
  AnyView rstd;   // [rows], acc, written
  double eps = 1e-5;

  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, gamma, beta, y, mean, rstd); }
  int64_t bytes() const { return x.nbytes() + y.nbytes(); }
  int64_t flops() const { return 7 * x.numel(); }
  static Guarantee guarantee() { return {}; }
};

struct LayerNormBackward {
  static constexpr std::string_view name = "layer_norm_backward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView x;       // [rows, m], dense
  AnyView dy;      // like x
  AnyView gamma;   // [m], acc; may be not given
  AnyView mean;    // [rows], acc, as saved
  AnyView rstd;    // [rows], acc, as saved
  AnyView dx;      // like x; may be not given
  AnyView dgamma;  // [m], acc; may be not given
  AnyView dbeta;   // [m], acc; may be not given

  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, dy, gamma, mean, rstd, dx, dgamma, dbeta); }
  int64_t bytes() const { return x.nbytes() + dy.nbytes() + dx.nbytes(); }
  int64_t flops() const { return 13 * x.numel(); }
  static Guarantee guarantee() { return {}; }
};

void run(Cpu&, const LayerNormForward&);
void run(Cpu&, const LayerNormBackward&);
void run(Cuda&, const LayerNormForward&);
void run(Cuda&, const LayerNormBackward&);

}  // namespace gradus
