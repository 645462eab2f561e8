// Copy and fill: the two steps that every other tensor operation rests on.
#pragma once

#include "core/backend.h"

namespace gradus {

namespace detail {
// Bytes of a view without the repetitions of its elements along axes of stride 0.
inline int64_t distinct_bytes(const AnyView& view) {
  int64_t bytes = view.nbytes();
  for (int axis = 0; axis < view.shape.rank() && bytes > 0; ++axis) {
    if (view.strides[axis] == 0) bytes /= view.shape[axis];
  }
  return bytes;
}
}  // namespace detail

// y[i] = x[i], converted to y's dtype as convert_to() of core/dtype.h does. Any strides on either
// side, 0 included on x; x and y do not overlap.
struct Copy {
  static constexpr std::string_view name = "copy";
  static constexpr Support support{.cpu = kAllDTypes, .cuda = kAllDTypes};

  AnyView x;  // any shape
  AnyView y;  // the shape of x

  DType dtype() const { return y.dtype; }
  auto views() const { return list_views(x, y); }
  int64_t bytes() const { return detail::distinct_bytes(x) + y.nbytes(); }
  int64_t flops() const { return 0; }
  static Guarantee guarantee() { return {.accumulator = "none"}; }
};

// y[i] = value, converted to y's dtype as convert_to() does. Any strides.
struct Fill {
  static constexpr std::string_view name = "fill";
  static constexpr Support support{.cpu = kAllDTypes, .cuda = kAllDTypes};

  AnyView y;  // any shape
  double value = 0.0;

  DType dtype() const { return y.dtype; }
  auto views() const { return list_views(y); }
  int64_t bytes() const { return y.nbytes(); }
  int64_t flops() const { return 0; }
  static Guarantee guarantee() { return {.accumulator = "none"}; }
};

void run(Cpu&, const Copy&);
void run(Cpu&, const Fill&);
void run(Cuda&, const Copy&);
void run(Cuda&, const Fill&);

}  // namespace gradus
