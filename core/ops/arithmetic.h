// The four operations of arithmetic, with broadcasting.
#pragma once

#include "core/backend.h"

namespace gradus {

// y = a + alpha b,  y = a - alpha b,  y = a b,  y = a / b   (alpha is used by add and sub only)
//
// backward, with dy the gradient of y (summed over the axes that an operand was repeated along):
//   add, sub: da = dy,       db = +-alpha dy
//   mul:      da = dy b,     db = dy a
//   div:      da = dy / b,   db = -dy a / b^2
//
// y may be a or b itself (same data and strides): the tape adds gradients so.
struct Arithmetic {
  enum class Kind : uint8_t { add, sub, mul, div };

  static constexpr std::string_view name = "arithmetic";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  Kind kind = Kind::add;
  AnyView a;  // the shape of y, or broadcasts to it
  AnyView b;  // the shape of y, or broadcasts to it
  AnyView y;  // any strides, no element twice
  double alpha = 1.0;

  DType dtype() const { return y.dtype; }
  auto views() const { return list_views(a, b, y); }
  int64_t bytes() const { return a.nbytes() + b.nbytes() + y.nbytes(); }
  int64_t flops() const { return y.numel() * (kind == Kind::add || kind == Kind::sub ? 2 : 1); }
  static Guarantee guarantee() { return {}; }
};

// y = scale x + shift.
// backward: dx = scale dy.
struct Affine {
  static constexpr std::string_view name = "affine";
  static constexpr Support support{.cpu = kFloating, .cuda = kFloating};

  AnyView x;  // any shape and strides
  AnyView y;  // the shape of x, any strides, no element twice; may be x itself
  double scale = 1.0;
  double shift = 0.0;

  DType dtype() const { return y.dtype; }
  auto views() const { return list_views(x, y); }
  int64_t bytes() const { return x.nbytes() + y.nbytes(); }
  int64_t flops() const { return 2 * y.numel(); }
  static Guarantee guarantee() { return {}; }
};

void run(Cpu&, const Arithmetic&);
void run(Cpu&, const Affine&);
void run(Cuda&, const Arithmetic&);
void run(Cuda&, const Affine&);

}  // namespace gradus
