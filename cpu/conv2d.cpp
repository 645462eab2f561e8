#include "core/ops/conv2d.h"

#include "cpu/dispatch.h"
#include "cpu/parallel.h"

namespace gradus::GRADUS_ISA {
namespace {

template <class T>
acc_t<T> load(T value) {
  return static_cast<acc_t<T>>(value);
}

// Extents and element strides of one convolution; x and y stand for dx and dy in backward.
struct Geometry {
  int64_t n, c, h, w, k, p, q, r, s;
  int64_t channels;  // of x per group
  int64_t outputs;   // of y per group
  Strides x, y;
  Window window;

  Geometry(const AnyView& x_view, const AnyView& y_view, const Window& win, int64_t groups)
      : n(x_view.shape[0]),
        c(x_view.shape[1]),
        h(x_view.shape[2]),
        w(x_view.shape[3]),
        k(y_view.shape[1]),
        p(y_view.shape[2]),
        q(y_view.shape[3]),
        r(win.kernel[0]),
        s(win.kernel[1]),
        channels(c / groups),
        outputs(k / groups),
        x(strides_of(x_view.shape, format_of(x_view, "conv2d"))),
        y(strides_of(y_view.shape, format_of(x_view, "conv2d"))),
        window(win) {}

  int64_t row(int64_t pi, int64_t ri) const {
    return pi * window.stride[0] - window.padding[0] + ri * window.dilation[0];
  }
  int64_t column(int64_t qi, int64_t si) const {
    return qi * window.stride[1] - window.padding[1] + si * window.dilation[1];
  }
};

template <class T>
acc_t<T> output(const Geometry& g, const T* x, const T* w, int64_t ki, int64_t pi, int64_t qi) {
  acc_t<T> sum = 0;
  x += ki / g.outputs * g.channels * g.x[1];
  w += ki * g.channels * g.r * g.s;
  for (int64_t ci = 0; ci < g.channels; ++ci) {
    for (int64_t ri = 0; ri < g.r; ++ri) {
      const int64_t hi = g.row(pi, ri);
      for (int64_t si = 0; si < g.s; ++si, ++w) {
        const int64_t wi = g.column(qi, si);
        if (hi < 0 || hi >= g.h || wi < 0 || wi >= g.w) continue;
        sum += load(x[ci * g.x[1] + hi * g.x[2] + wi * g.x[3]]) * load(*w);
      }
    }
  }
  return sum;
}

template <class T>
acc_t<T> input_gradient(const Geometry& g, const T* dy, const T* w, int64_t ci, int64_t hi,
                        int64_t wi) {
  acc_t<T> sum = 0;
  const int64_t first = ci / g.channels * g.outputs;  // of the outputs that read this channel
  for (int64_t ki = first; ki < first + g.outputs; ++ki) {
    for (int64_t ri = 0; ri < g.r; ++ri) {
      const int64_t top = hi - g.row(0, ri);  // p · stride of the window that has hi at tap ri
      if (top < 0 || top % g.window.stride[0] != 0 || top / g.window.stride[0] >= g.p) continue;
      for (int64_t si = 0; si < g.s; ++si) {
        const int64_t left = wi - g.column(0, si);
        if (left < 0 || left % g.window.stride[1] != 0 || left / g.window.stride[1] >= g.q)
          continue;
        sum += load(dy[ki * g.y[1] + top / g.window.stride[0] * g.y[2] +
                       left / g.window.stride[1] * g.y[3]]) *
               load(w[((ki * g.channels + ci % g.channels) * g.r + ri) * g.s + si]);
      }
    }
  }
  return sum;
}

template <class T>
acc_t<T> weight_gradient(const Geometry& g, const T* x, const T* dy, int64_t ki, int64_t ci,
                         int64_t ri, int64_t si) {
  acc_t<T> sum = 0;
  x += (ki / g.outputs * g.channels + ci) * g.x[1];
  dy += ki * g.y[1];
  for (int64_t ni = 0; ni < g.n; ++ni) {
    for (int64_t pi = 0; pi < g.p; ++pi) {
      const int64_t hi = g.row(pi, ri);
      if (hi < 0 || hi >= g.h) continue;
      acc_t<T> row = 0;
      for (int64_t qi = 0; qi < g.q; ++qi) {
        const int64_t wi = g.column(qi, si);
        if (wi < 0 || wi >= g.w) continue;
        row += load(x[ni * g.x[0] + hi * g.x[2] + wi * g.x[3]]) *
               load(dy[ni * g.y[0] + pi * g.y[2] + qi * g.y[3]]);
      }
      sum += row;
    }
  }
  return sum;
}

template <class T>
acc_t<T> bias_gradient(const Geometry& g, const T* dy, int64_t ki) {
  acc_t<T> sum = 0;
  for (int64_t ni = 0; ni < g.n; ++ni) {
    for (int64_t pi = 0; pi < g.p; ++pi) {
      acc_t<T> row = 0;
      for (int64_t qi = 0; qi < g.q; ++qi)
        row += load(dy[ni * g.y[0] + ki * g.y[1] + pi * g.y[2] + qi * g.y[3]]);
      sum += row;
    }
  }
  return sum;
}

}  // namespace

void run(Cpu& cpu, const Conv2dForward& args) {
  const Geometry g(args.x, args.y, args.window, args.groups);
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const T* x = args.x.as<T>();
    const T* w = args.w.as<T>();
    const acc_t<T>* bias = args.bias.as<acc_t<T>>();
    T* y = args.y.as<T>();
    cpu.parallel(g.n * g.p, [&](int64_t task) {
      const int64_t ni = task / g.p, pi = task % g.p;
      for (int64_t ki = 0; ki < g.k; ++ki) {
        for (int64_t qi = 0; qi < g.q; ++qi) {
          const acc_t<T> sum = output(g, x + ni * g.x[0], w, ki, pi, qi);
          y[ni * g.y[0] + ki * g.y[1] + pi * g.y[2] + qi * g.y[3]] =
              static_cast<T>(bias ? sum + bias[ki] : sum);
        }
      }
    });
  });
}

void run(Cpu& cpu, const Conv2dBackwardInput& args) {
  const Geometry g(args.dx, args.dy, args.window, args.groups);
  visit(Floating{}, args.dx.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const T* dy = args.dy.as<T>();
    const T* w = args.w.as<T>();
    T* dx = args.dx.as<T>();
    cpu.parallel(g.n * g.h, [&](int64_t task) {
      const int64_t ni = task / g.h, hi = task % g.h;
      for (int64_t ci = 0; ci < g.c; ++ci) {
        for (int64_t wi = 0; wi < g.w; ++wi) {
          dx[ni * g.x[0] + ci * g.x[1] + hi * g.x[2] + wi * g.x[3]] =
              static_cast<T>(input_gradient(g, dy + ni * g.y[0], w, ci, hi, wi));
        }
      }
    });
  });
}

void run(Cpu& cpu, const Conv2dBackwardWeight& args) {
  const Geometry g(args.x, args.dy, args.window, args.groups);
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const T* x = args.x.as<T>();
    const T* dy = args.dy.as<T>();
    if (args.dw) {
      const bool is_narrow = args.dw.dtype == args.x.dtype;
      T* narrow = is_narrow ? args.dw.as<T>() : nullptr;
      acc_t<T>* wide = is_narrow ? nullptr : args.dw.as<acc_t<T>>();
      cpu.parallel(g.k * g.channels, [&](int64_t task) {
        for (int64_t tap = 0; tap < g.r * g.s; ++tap) {
          const acc_t<T> sum =
              weight_gradient(g, x, dy, task / g.channels, task % g.channels, tap / g.s, tap % g.s);
          const int64_t at = task * g.r * g.s + tap;
          if (narrow)
            narrow[at] = static_cast<T>(sum);
          else
            wide[at] = sum;
        }
      });
    }
    if (acc_t<T>* dbias = args.dbias.as<acc_t<T>>())
      cpu.parallel(g.k, [&](int64_t ki) { dbias[ki] = bias_gradient(g, dy, ki); });
  });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(Conv2dForward)
GRADUS_DISPATCH(Conv2dBackwardInput)
GRADUS_DISPATCH(Conv2dBackwardWeight)
