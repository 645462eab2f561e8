// Non-owning views, as kernels get them. A view never outlives the launch it is built for.
#pragma once

#include "core/device.h"
#include "core/dtype.h"
#include "core/shape.h"

namespace gradus {

namespace detail {
[[noreturn]] void fail_view(DType expected, DType got);
}

// A tensor without its type or owner. A default-constructed view is "not given": an absent bias,
// or a gradient that nobody wants. A given view may still hold zero elements.
struct AnyView {
  void* data = nullptr;
  DType dtype = DType::f32;
  Device device = kCpu;
  bool given = false;
  Shape shape;
  Strides strides;

  explicit operator bool() const { return given; }
  int64_t numel() const { return shape.numel(); }
  int64_t nbytes() const { return given ? numel() * size_of(dtype) : 0; }
  bool is_dense(MemoryFormat format = MemoryFormat::contiguous) const {
    return gradus::is_dense(shape, strides, format);
  }

  // The first element as a T, or null when the view is not given. Throws internal if dtype is not
  // T's.
  template <class T>
  T* as() const {
    if (!given) return nullptr;
    if (dtype != dtype_of<T>) detail::fail_view(dtype_of<T>, dtype);
    return static_cast<T*>(data);
  }
};

// "f32[8,30,14,14]@cuda:0", for error texts.
std::string to_string(const AnyView& view);

// A typed view with strides, for kernels that index.
template <class T>
struct View {
  T* data = nullptr;
  Shape shape;
  Strides strides;

  View() = default;
  explicit View(const AnyView& view)
      : data(view.as<T>()), shape(view.shape), strides(view.strides) {}
};

// How a dense 4-D view is stored: channels_last when its strides say NHWC, else contiguous. Where
// both would fit (c = 1, or h = w = 1) the strides themselves decide. Throws naming `op` when the
// view is dense in neither.
MemoryFormat format_of(const Shape& shape, const Strides& strides, std::string_view op);
inline MemoryFormat format_of(const AnyView& view, std::string_view op) {
  return format_of(view.shape, view.strides, op);
}

}  // namespace gradus
