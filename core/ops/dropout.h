// Dropout: elements set to 0 at random, the others scaled up so that the mean stays.
//
//   keep[i] = word >= p·2^24,  with word the upper 24 of the 32 bits that block i/4 of this call
//             gives to element i (core/ops/random.h); i counts the elements as x stores them
//   y[i]  = x[i]·keep[i] / (1 - p)
//   dx[i] = dy[i]·keep[i] / (1 - p)
//
// Both devices draw the same keep. NaN and infinity pass as in any product: 0·NaN is NaN.
// Source: Srivastava et al. 2014, https://jmlr.org/papers/v15/srivastava14a.html
//
// Saved for backward: keep, a byte per element.
#pragma once

#include "core/ops/random.h"

namespace gradus {

struct DropoutForward {
  static constexpr std::string_view name = "dropout_forward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView x;      // any shape, contiguous or channels-last
  AnyView y;      // like x
  AnyView keep;   // like x, u8: 1 or 0
  AnyView state;  // [2], i64: of the generator; this call is counted
  double p = 0.5;

  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, y, keep, state); }
  int64_t bytes() const { return x.nbytes() + y.nbytes() + keep.nbytes(); }
  int64_t flops() const { return x.numel(); }
  static Guarantee guarantee() { return {.accumulator = "none"}; }
};

struct DropoutBackward {
  static constexpr std::string_view name = "dropout_backward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView dy;    // like keep
  AnyView keep;  // as saved
  AnyView dx;    // like keep
  double p = 0.5;

  DType dtype() const { return dx.dtype; }
  auto views() const { return list_views(dy, keep, dx); }
  int64_t bytes() const { return dy.nbytes() + keep.nbytes() + dx.nbytes(); }
  int64_t flops() const { return dx.numel(); }
  static Guarantee guarantee() { return {.accumulator = "none"}; }
};

void run(Cpu&, const DropoutForward&);
void run(Cpu&, const DropoutBackward&);
void run(Cuda&, const DropoutForward&);
void run(Cuda&, const DropoutBackward&);

}  // namespace gradus
