// Batch normalization: one mean and one variance per channel, over everything else.
//
// The set of channel c: the m = n·s elements x[·, c, ·] (s = product of the axes after the
// channel).
//
// forward, training                          forward, evaluation
//   mean = Σ x / m                             mean = running_mean
//   var  = Σ (x - mean)² / m                   var  = running_var
//   rstd = 1 / sqrt(var + eps)                 rstd = 1 / sqrt(var + eps)
//   xhat = (x - mean)·rstd                     xhat = (x - mean)·rstd
//   y    = gamma·xhat + beta                   y    = gamma·xhat + beta
//
//   running_mean ← (1 - f)·running_mean + f·mean
//   running_var  ← (1 - f)·running_var  + f·var·m/(m - 1)      (unbiased)
//   batches      ← batches + 1;  f = momentum, or 1 / batches for a cumulative average
//
// backward, training: mean and rstd depend on x, which adds two terms to the direct one
//   m1 = Σ dy / m         how far moving every x together moves the loss; the mean takes that away
//   m2 = Σ dy·xhat / m    how far stretching every x moves the loss; the variance takes that away
//   dx = gamma·rstd·(dy - m1 - xhat·m2)
// backward, evaluation: mean and rstd are constants
//   dx = gamma·rstd·dy
// both
//   dgamma = Σ dy·xhat,   dbeta = Σ dy
//
// gamma may stand outside m1 and m2 only because it is one number for the whole set.
// Source: Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167, section 3.
//
// Saved for backward: x, mean, rstd (not xhat: recomputing it costs no bytes, storing it m·c
// elements). Variance is summed about the mean, in one pass by merging (count, mean, M2) of chunks
// with Chan's formula, or in two passes; never as E[x²] - E[x]² (docs/numerics.md). Chunks depend
// on the shape of x only (on CUDA also on its alignment, on what the device has of clusters, shared
// memory and L2, on whether the running average is cumulative, and in the gradient on whether dx is
// wanted and on `training`).
#pragma once

#include "core/backend.h"

namespace gradus {

// x as the kernels see it: [n, c, s] for contiguous, [n·s, c] for channels-last tensors.
struct BatchNormGeometry {
  int64_t n = 0;
  int64_t c = 0;
  int64_t s = 0;
  bool channels_last = false;
  int64_t m() const { return n * s; }
};

BatchNormGeometry batch_norm_geometry(const AnyView& x);

struct BatchNormForward {
  static constexpr std::string_view name = "batch_norm_forward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView x;             // [n, c, ...], rank 2 to 5, contiguous or channels-last
  AnyView gamma;         // [c], acc, contiguous; may be not given (1)
  AnyView beta;          // [c], acc, contiguous; may be not given (0)
  AnyView y;             // like x
  AnyView mean;          // [c], acc, written
  AnyView rstd;          // [c], acc, written
  AnyView running_mean;  // [c], acc, any stride; read in evaluation, updated in training if given
  AnyView running_var;   // [c], acc, any stride; the same
  AnyView batches;       // one i64; counts the training batches; may be not given
  double momentum = 0.1;
  bool cumulative = false;  // average over all batches instead of momentum; needs `batches`
  double eps = 1e-5;
  bool training = true;

  DType dtype() const { return x.dtype; }
  auto views() const {
    return list_views(x, gamma, beta, y, mean, rstd, running_mean, running_var, batches);
  }
  int64_t bytes() const { return x.nbytes() + y.nbytes(); }
  int64_t flops() const { return (training ? 7 : 2) * x.numel(); }
  static Guarantee guarantee() { return {}; }
};

struct BatchNormBackward {
  static constexpr std::string_view name = "batch_norm_backward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView x;       // [n, c, ...]
  AnyView dy;      // like x
  AnyView gamma;   // [c], acc, contiguous; may be not given
  AnyView mean;    // [c], acc, as saved
  AnyView rstd;    // [c], acc, as saved
  AnyView dx;      // like x; may be not given
  AnyView dgamma;  // [c], acc; may be not given
  AnyView dbeta;   // [c], acc; may be not given
  bool training = true;

  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, dy, gamma, mean, rstd, dx, dgamma, dbeta); }
  int64_t bytes() const { return x.nbytes() + dy.nbytes() + dx.nbytes(); }
  int64_t flops() const { return (training ? 9 : 6) * x.numel(); }
  static Guarantee guarantee() { return {}; }
};

void run(Cpu&, const BatchNormForward&);
void run(Cpu&, const BatchNormBackward&);
void run(Cuda&, const BatchNormForward&);
void run(Cuda&, const BatchNormBackward&);

}  // namespace gradus
