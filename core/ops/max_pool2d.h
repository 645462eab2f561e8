// Maximum over windows of the two spatial axes.
//
//   y[n,c,p,q]     = max over (r,s) of x[n,c, h(p,r), w(q,s)]
//   index[n,c,p,q] = r·S + s of the element taken
//   dx[n,c,h,w]    = Σ over the windows that took x[n,c,h,w] of dy[n,c,p,q]
//   h(p,r)         = p·stride_h - pad_h + r·dil_h,  w(q,s) = q·stride_w - pad_w + s·dil_w
//
// Of equal elements the first in row-major order is taken; a NaN wins over every number, padding
// never. Every window holds an element of x.
// Formula: https://pytorch.org/docs/stable/generated/torch.nn.MaxPool2d.html
#pragma once

#include "core/backend.h"
#include "core/ops/window.h"

namespace gradus {

// Whether windows of 2 x 2 tile the input. Their index has two bits per output: output e in the
// order of memory has bits 2·(e % 4) and up of byte e / 4 (ceil mode may let the last windows
// overhang).
inline bool packs_index(const Window& window) {
  return window.kernel == Pair(2) && window.stride == Pair(2) && window.padding == Pair(0) &&
         window.dilation == Pair(1);
}
constexpr int64_t packed_index_bytes(int64_t outputs) { return outputs / 4 + (outputs % 4 != 0); }

struct MaxPool2dForward {
  static constexpr std::string_view name = "max_pool2d_forward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView x;      // [n, c, h, w], contiguous or channels-last
  AnyView y;      // [n, c, p, q], format of x
  AnyView index;  // [n, c, p, q], format of x; u8 for windows of at most 256 elements, else i32; or
                  // u8 [packed_index_bytes]; may be not given (inference)
  Window window;

  DType dtype() const { return x.dtype; }
  auto views() const { return list_views(x, y, index); }
  int64_t bytes() const { return x.nbytes() + y.nbytes() + index.nbytes(); }
  int64_t flops() const { return y.numel() * window.kernel[0] * window.kernel[1]; }
  static Guarantee guarantee() { return {.accumulator = "none"}; }
};

struct MaxPool2dBackward {
  static constexpr std::string_view name = "max_pool2d_backward";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView dy;     // [n, c, p, q], format of dx
  AnyView index;  // as saved by the forward pass
  AnyView dx;     // [n, c, h, w]; every element is written
  Window window;

  DType dtype() const { return dy.dtype; }
  auto views() const { return list_views(dy, index, dx); }
  int64_t bytes() const { return dy.nbytes() + index.nbytes() + dx.nbytes(); }
  int64_t flops() const { return dy.numel(); }
  static Guarantee guarantee() { return {}; }
};

void run(Cpu&, const MaxPool2dForward&);
void run(Cpu&, const MaxPool2dBackward&);
void run(Cuda&, const MaxPool2dForward&);
void run(Cuda&, const MaxPool2dBackward&);

}  // namespace gradus
