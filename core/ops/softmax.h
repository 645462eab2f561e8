// Softmax and log-softmax over one axis of any tensor.
//
// A set holds the c elements along the axis, at fixed indices of all other axes:
//
//   z_k = x_k - max x,   total = Σ exp(z)
//   softmax      y_k = exp(z_k) / total
//   log_softmax  y_k = z_k - log total
//
// backward, from y alone
//   softmax      dx_k = y_k·(dy_k - Σ_j dy_j·y_j)     the outputs sum to 1: raising one lowers all
//   log_softmax  dx_k = dy_k - exp(y_k)·Σ_j dy_j      exp(y) is the softmax
//
// Formula: https://pytorch.org/docs/stable/generated/torch.nn.Softmax.html and LogSoftmax.html
//
// Saved for backward: y, as stored. The maximum is always taken away: exp never overflows, and
// total is at least 1. The maximum itself may pass over a NaN, since the sum does not. What IEEE
// arithmetic then gives holds on both devices: a set with a NaN or +inf in it, or with nothing but
// -inf, is NaN in all places; -inf beside a finite value gives 0 (log: -inf).
#pragma once

#include "core/backend.h"

namespace gradus {

// x as the kernels see it: element k of set (o, i) lies at (o·c + k)·inner + i. inner is 1 for the
// last axis of a contiguous tensor and for the channels of a channels-last one.
struct SoftmaxGeometry {
  int64_t outer = 0;
  int64_t c = 0;
  int64_t inner = 1;
};

// x is not empty, contiguous or channels-last.
SoftmaxGeometry softmax_geometry(const AnyView& x, int axis);

struct SoftmaxForward {
  static constexpr std::string_view name = "softmax_forward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView x;         // rank 1 to 8, contiguous or channels-last
  AnyView y;         // like x
  int axis = 0;      // not negative
  bool log = false;  // log_softmax

  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, y); }
  int64_t bytes() const { return x.nbytes() + y.nbytes(); }
  int64_t flops() const { return 5 * x.numel(); }
  static Guarantee guarantee() { return {}; }
};

struct SoftmaxBackward {
  static constexpr std::string_view name = "softmax_backward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView y;   // as the forward pass wrote it
  AnyView dy;  // like y
  AnyView dx;  // like y
  int axis = 0;
  bool log = false;

  DType dtype() const { return y.dtype; }
  auto views() const { return list_views(y, dy, dx); }
  int64_t bytes() const { return y.nbytes() + dy.nbytes() + dx.nbytes(); }
  int64_t flops() const { return 4 * y.numel(); }
  static Guarantee guarantee() { return {}; }
};

void run(Cpu&, const SoftmaxForward&);
void run(Cpu&, const SoftmaxBackward&);
void run(Cuda&, const SoftmaxForward&);
void run(Cuda&, const SoftmaxBackward&);

}  // namespace gradus
