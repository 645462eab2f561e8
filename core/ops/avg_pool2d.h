// Mean over windows of the two spatial axes, strided or adaptive.
//
//   y[n,c,p,q]  = Σ over the elements of x[n,c] in window (p, q), divided by the window's divisor
//   dx[n,c,h,w] = Σ over the windows that hold (h, w) of dy[n,c,p,q] / its divisor
//
// Strided: window i starts at i·stride - padding and has `kernel` elements, cut off at the end of
// the right padding; the divisor is `divisor` if that is given, else the number of elements, those
// in the padding included or not. So what overhangs the padding in ceil mode never counts.
// Adaptive: window i of `positions` takes floor(i·extent / positions) up to and without
// ceil((i+1)·extent / positions).
// Formulas: https://pytorch.org/docs/stable/generated/torch.nn.AvgPool2d.html,
// https://pytorch.org/docs/stable/generated/torch.nn.AdaptiveAvgPool2d.html
#pragma once

#include "core/backend.h"
#include "core/ops/window.h"

namespace gradus {

// Windows along one axis. Products of two of the numbers fit I; the maths is in 64 bits unless a
// kernel knows that 32 are enough.
template <class I>
struct AvgAxisOf {
  I extent = 1;     // of x
  I positions = 1;  // of y
  I kernel = 1, stride = 1, padding = 0;
  bool adaptive = false;

  struct Range {
    I begin, end;  // elements of x
    I counted;     // with those of the padding
    GRADUS_HD I size() const { return end - begin; }
  };
  // The elements of window i. Kernels pass a faster by_positions(a) = a / positions.
  template <class F>
  GRADUS_HD Range window(I i, const F& by_positions) const {
    if (adaptive) {
      const I begin = by_positions(i * extent);
      const I end = by_positions((i + 1) * extent + positions - 1);
      return {begin, end, end - begin};
    }
    const I start = i * stride - padding, room = extent + padding - start;
    const I counted = kernel < room ? kernel : room;
    const I end = start + counted;
    return {start > 0 ? start : 0, end < extent ? end : extent, counted};
  }
  __attribute__((always_inline)) Range window(I i) const {
    return window(i, [this](I a) { return a / positions; });
  }
  // The windows that hold element `at`: from begin up to and without end. by_step divides by
  // step().
  I step() const { return adaptive ? extent : stride; }
  template <class F>
  GRADUS_HD Range holders(I at, const F& by_step) const {
    if (adaptive) {
      return {by_step(at * positions), by_step((at + 1) * positions + extent - 1), 0};
    }
    const I last = at + padding, before = last - kernel, end = by_step(last) + 1;
    return {before < 0 ? 0 : by_step(before) + 1, end < positions ? end : positions, 0};
  }
  __attribute__((always_inline)) Range holders(I at) const {
    return holders(at, [this](I a) { return a / step(); });
  }
};

using AvgAxis = AvgAxisOf<int64_t>;

template <class I>
struct AvgWindowsOf {
  using Range = typename AvgAxisOf<I>::Range;
  AvgAxisOf<I> h, w;
  bool count_include_pad = true;
  I divisor = 0;  // 0: the count

  // What the sum over the window of these ranges is divided by.
  GRADUS_HD I divisor_of(const Range& rows, const Range& columns) const {
    if (divisor != 0) return divisor;
    return count_include_pad ? rows.counted * columns.counted : rows.size() * columns.size();
  }
};
using AvgWindows = AvgWindowsOf<int64_t>;

struct AvgPool2dForward {
  static constexpr std::string_view name = "avg_pool2d_forward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView x;  // [n, c, h, w], contiguous or channels-last
  AnyView y;  // [n, c, p, q], format of x
  AvgWindows windows;

  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, y); }
  int64_t bytes() const { return x.nbytes() + y.nbytes(); }
  int64_t flops() const { return x.numel() + y.numel(); }
  static Guarantee guarantee() { return {}; }
};

struct AvgPool2dBackward {
  static constexpr std::string_view name = "avg_pool2d_backward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView dy;  // [n, c, p, q], format of dx
  AnyView dx;  // [n, c, h, w], contiguous or channels-last; every element is written
  AvgWindows windows;

  DType dtype() const { return dy.dtype; }
  auto views() const { return list_views(dy, dx); }
  int64_t bytes() const { return dy.nbytes() + dx.nbytes(); }
  int64_t flops() const { return dx.numel() + dy.numel(); }
  static Guarantee guarantee() { return {}; }
};

void run(Cpu&, const AvgPool2dForward&);
void run(Cpu&, const AvgPool2dBackward&);
void run(Cuda&, const AvgPool2dForward&);
void run(Cuda&, const AvgPool2dBackward&);

}  // namespace gradus
