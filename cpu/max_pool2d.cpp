#include "core/ops/max_pool2d.h"

#include "cpu/dispatch.h"
#include "cpu/parallel.h"

namespace gradus::GRADUS_ISA {
namespace {

// Extents and element strides of one pooling; x and y stand for dx and dy in backward.
struct Geometry {
  int64_t n, c, h, w, p, q;
  Strides x, y;
  Window window;

  Geometry(const AnyView& x_view, const AnyView& y_view, const Window& win)
      : n(x_view.shape[0]),
        c(x_view.shape[1]),
        h(x_view.shape[2]),
        w(x_view.shape[3]),
        p(y_view.shape[2]),
        q(y_view.shape[3]),
        x(strides_of(x_view.shape, format_of(x_view, "max_pool2d"))),
        y(strides_of(y_view.shape, format_of(x_view, "max_pool2d"))),
        window(win) {}

  // Offset within a plane of x of element `tap` of the window at (pi, qi), or -1 outside x.
  int64_t offset(int64_t pi, int64_t qi, int64_t tap) const {
    const int64_t hi =
        pi * window.stride[0] - window.padding[0] + tap / window.kernel[1] * window.dilation[0];
    const int64_t wi =
        qi * window.stride[1] - window.padding[1] + tap % window.kernel[1] * window.dilation[1];
    return hi < 0 || hi >= h || wi < 0 || wi >= w ? -1 : hi * x[2] + wi * x[3];
  }
};

template <class T>
int64_t argmax(const Geometry& g, const T* x, int64_t pi, int64_t qi) {
  int64_t best = -1;
  acc_t<T> largest = 0;
  for (int64_t tap = 0; tap < g.window.kernel[0] * g.window.kernel[1]; ++tap) {
    const int64_t at = g.offset(pi, qi, tap);
    if (at < 0) continue;
    const auto value = static_cast<acc_t<T>>(x[at]);
    const bool wins = value > largest || (value != value && largest == largest);
    if (best >= 0 && !wins) continue;
    best = tap;
    largest = value;
  }
  return best;
}

// The dy of every window that took element (hi, wi), summed in acc_t.
template <class T, class Index>
acc_t<T> taken(const Geometry& g, const T* dy, const Index* index, int64_t hi, int64_t wi) {
  const auto& [kernel, stride, padding, dilation] = g.window;
  acc_t<T> sum = 0;
  for (int64_t r = 0; r < kernel[0]; ++r) {
    const int64_t top = hi + padding[0] - r * dilation[0];
    if (top < 0 || top % stride[0] != 0 || top / stride[0] >= g.p) continue;
    for (int64_t s = 0; s < kernel[1]; ++s) {
      const int64_t left = wi + padding[1] - s * dilation[1];
      if (left < 0 || left % stride[1] != 0 || left / stride[1] >= g.q) continue;
      const int64_t at = top / stride[0] * g.y[2] + left / stride[1] * g.y[3];
      if (static_cast<int64_t>(index[at]) == r * kernel[1] + s)
        sum += static_cast<acc_t<T>>(dy[at]);
    }
  }
  return sum;
}

template <class T, class Index>
void backward(Cpu& cpu, const Geometry& g, const T* dy, const Index* index, T* dx) {
  cpu.parallel(g.n * g.c, [&](int64_t task) {
    const int64_t x_plane = task / g.c * g.x[0] + task % g.c * g.x[1];
    const int64_t y_plane = task / g.c * g.y[0] + task % g.c * g.y[1];
    for (int64_t hi = 0; hi < g.h; ++hi) {
      for (int64_t wi = 0; wi < g.w; ++wi) {
        dx[x_plane + hi * g.x[2] + wi * g.x[3]] =
            static_cast<T>(taken(g, dy + y_plane, index + y_plane, hi, wi));
      }
    }
  });
}

}  // namespace

void run(Cpu& cpu, const MaxPool2dForward& args) {
  const Geometry g(args.x, args.y, args.window);
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const T* x = args.x.as<T>();
    T* y = args.y.as<T>();
    const bool is_narrow = args.index.dtype == DType::u8;
    uint8_t* narrow = is_narrow ? args.index.as<uint8_t>() : nullptr;
    int32_t* wide = is_narrow ? nullptr : args.index.as<int32_t>();
    cpu.parallel(g.n * g.c, [&](int64_t task) {
      const T* plane = x + task / g.c * g.x[0] + task % g.c * g.x[1];
      for (int64_t pi = 0; pi < g.p; ++pi) {
        for (int64_t qi = 0; qi < g.q; ++qi) {
          const int64_t to = task / g.c * g.y[0] + task % g.c * g.y[1] + pi * g.y[2] + qi * g.y[3];
          const int64_t tap = argmax(g, plane, pi, qi);
          y[to] = plane[g.offset(pi, qi, tap)];
          if (narrow) narrow[to] = static_cast<uint8_t>(tap);
          if (wide) wide[to] = static_cast<int32_t>(tap);
        }
      }
    });
  });
}

void run(Cpu& cpu, const MaxPool2dBackward& args) {
  const Geometry g(args.dx, args.dy, args.window);
  visit(Floating{}, args.dx.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const T* dy = args.dy.as<T>();
    T* dx = args.dx.as<T>();
    if (args.index.dtype == DType::u8)
      backward(cpu, g, dy, args.index.as<uint8_t>(), dx);
    else
      backward(cpu, g, dy, args.index.as<int32_t>(), dx);
  });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(MaxPool2dForward)
GRADUS_DISPATCH(MaxPool2dBackward)
