// Convolution (cross-correlation, as in every deep-learning framework) over two spatial axes.
//
//   y[n,k,p,q] = bias[k] + Σ_{c,r,s} x[n, g·C + c, h(p,r), w(q,s)] · w[k,c,r,s]
//   h(p,r)     = p·stride_h - pad_h + r·dil_h,  w(q,s) = q·stride_w - pad_w + s·dil_w
// with C = c/groups channels per group, g the group of output channel k, zeros outside x.
//
//   dx[n,c,h,w] = Σ over every (k,r,s,p,q) that reads x[n,c,h,w] of  dy[n,k,p,q] · w[k,c,r,s]
//   dw[k,c,r,s] = Σ_{n,p,q} dy[n,k,p,q] · x[n, g·C + c, h(p,r), w(q,s)]
//   dbias[k]    = Σ_{n,p,q} dy[n,k,p,q]
//
// Formula: https://pytorch.org/docs/stable/generated/torch.nn.Conv2d.html
//
// x, y, dx, dy are contiguous (NCHW) or channels-last, all four in the format of x. Sums are kept
// in acc_t and rounded once. Reductions over n, p, q are split into slices that depend on the
// shape, format, dtype and device only.
#pragma once

#include "core/backend.h"
#include "core/ops/window.h"

namespace gradus {

struct Conv2dForward {
  static constexpr std::string_view name = "conv2d_forward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView x;     // [n, c, h, w]
  AnyView w;     // [k, c/groups, r, s], contiguous, dtype of x
  AnyView bias;  // [k], acc_dtype(x.dtype); may be not given
  AnyView y;     // [n, k, p, q], format of x
  Window window;
  int64_t groups = 1;
  bool tf32 = false;  // f32 on CUDA: operands may be rounded to TF32

  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, w, bias, y); }
  int64_t bytes() const { return x.nbytes() + w.nbytes() + bias.nbytes() + y.nbytes(); }
  int64_t flops() const { return 2 * y.numel() * (w.shape[1] * w.shape[2] * w.shape[3]); }
  static Guarantee guarantee() { return {}; }
};

struct Conv2dBackwardInput {
  static constexpr std::string_view name = "conv2d_backward_input";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView dy;  // [n, k, p, q], format of dx
  AnyView w;   // [k, c/groups, r, s], contiguous, dtype of dy
  AnyView dx;  // [n, c, h, w]; every element is written, those that no window reads with 0
  Window window;
  int64_t groups = 1;
  bool tf32 = false;

  DType dtype() const { return dy.dtype; }
  auto views() const { return list_views(dy, w, dx); }
  int64_t bytes() const { return dy.nbytes() + w.nbytes() + dx.nbytes(); }
  int64_t flops() const { return 2 * dy.numel() * (w.shape[1] * w.shape[2] * w.shape[3]); }
  static Guarantee guarantee() { return {}; }
};

struct Conv2dBackwardWeight {
  static constexpr std::string_view name = "conv2d_backward_weight";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView x;   // [n, c, h, w]
  AnyView dy;  // [n, k, p, q], format of x
  AnyView dw;  // [k, c/groups, r, s], contiguous, dtype of x or acc_dtype of it; may be not given
  AnyView dbias;  // [k], acc_dtype(x.dtype); may be not given
  Window window;
  int64_t groups = 1;
  bool tf32 = false;

  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, dy, dw, dbias); }
  int64_t bytes() const { return x.nbytes() + dy.nbytes() + dw.nbytes() + dbias.nbytes(); }
  int64_t flops() const {
    return 2 * dy.numel() * (x.shape[1] / groups * window.kernel[0] * window.kernel[1]);
  }
  static Guarantee guarantee() { return {}; }
};

void run(Cpu&, const Conv2dForward&);
void run(Cpu&, const Conv2dBackwardInput&);
void run(Cpu&, const Conv2dBackwardWeight&);
void run(Cuda&, const Conv2dForward&);
void run(Cuda&, const Conv2dBackwardInput&);
void run(Cuda&, const Conv2dBackwardWeight&);

}  // namespace gradus
