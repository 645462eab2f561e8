// Local response normalization: each value is divided by a power of the sum of squares of its
// neighbours along the channels.
//
// The window of channel c: [c - size/2, c + size - size/2), so an even size reaches one channel
// further down than up. Channels outside count as zero and the divisor stays `size`. The channels
// whose windows hold channel i form the mirrored window [i + 1 - (size - size/2), i + size/2 + 1);
// for even sizes the two differ.
//
// forward
//   denom_c = k + alpha/size·Σ x_j²                            j over the window of c
//   y_c     = x_c·denom_c^-beta
// backward: x_i acts through its own numerator, which gives the direct term, and through the
// denominators of all windows that hold it, which gives the other one
//   direct_c = dy_c·denom_c^-beta
//   t_c      = direct_c·x_c/denom_c
//   dx_i     = direct_i - 2·beta·alpha/size·x_i·Σ t_c          c over the mirrored window of i
//
// Where denom is below the smallest normal number (k = 0 and a window of zeros), both denom^-beta
// and 1/denom count as 0: y and dx are 0. An overflowing sum of squares gives y = 0.
// Source: Krizhevsky, Sutskever and Hinton 2012, section 3.3; alpha divided by size and the
// window's side as in https://pytorch.org/docs/stable/generated/torch.nn.LocalResponseNorm.html
//
// Saved for backward: x alone; the denominators are computed again. Windows are added up anew for
// each channel (what windows share may be added up once), in an order that the shape (on
// CUDA also the alignment) decides: a running sum would subtract, and inf - inf is not a number.
#pragma once

#include "core/backend.h"

namespace gradus {

// x as the kernels see it: [n, c, s] for contiguous, [n·s, c] for channels-last tensors, with
// `before` channels below c in its window, and `after` above it.
struct LocalResponseNormGeometry {
  int64_t n = 0;
  int64_t c = 0;
  int64_t s = 0;
  bool channels_last = false;
  int64_t before = 0;
  int64_t after = 0;
};

LocalResponseNormGeometry local_response_norm_geometry(const AnyView& x, int64_t size);

// The exponents that kernels reach by square roots; all others take pow().
enum class ResponsePower : uint8_t { half, three_quarters, one, other };
ResponsePower response_power(double beta);

struct LocalResponseNormForward {
  static constexpr std::string_view name = "local_response_norm_forward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView x;      // [n, c, ...], rank 2 to 5, contiguous or channels-last
  AnyView y;      // like x; may be not given
  AnyView denom;  // like x, acc; may be not given
  int64_t size = 5;
  double alpha = 1e-4;  // above 0
  double beta = 0.75;
  double k = 1;

  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, y, denom); }
  int64_t bytes() const { return x.nbytes() + y.nbytes() + denom.nbytes(); }
  int64_t flops() const { return (2 * size + 5) * x.numel(); }
  static Guarantee guarantee() { return {}; }
};

struct LocalResponseNormBackward {
  static constexpr std::string_view name = "local_response_norm_backward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView x;   // [n, c, ...]
  AnyView dy;  // like x
  AnyView dx;  // like x
  int64_t size = 5;
  double alpha = 1e-4;  // above 0
  double beta = 0.75;
  double k = 1;

  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, dy, dx); }
  int64_t bytes() const { return x.nbytes() + dy.nbytes() + dx.nbytes(); }
  int64_t flops() const { return (3 * size + 11) * x.numel(); }
  static Guarantee guarantee() { return {}; }
};

void run(Cpu&, const LocalResponseNormForward&);
void run(Cpu&, const LocalResponseNormBackward&);
void run(Cuda&, const LocalResponseNormForward&);
void run(Cuda&, const LocalResponseNormBackward&);

}  // namespace gradus
