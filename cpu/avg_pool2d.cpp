#include "core/ops/avg_pool2d.h"

#include "cpu/dispatch.h"
#include "cpu/lanes.h"
#include "cpu/parallel.h"
#include "cpu/workspace.h"

namespace gradus::GRADUS_ISA {
namespace {

// Extents of one pooling; a row of x or y holds `pixel` elements per column.
struct AvgGeometry {
  int64_t n, c;
  AvgWindows windows;
  bool channels_last;

  AvgGeometry(const AnyView& x, const AvgWindows& windows)
      : n(x.shape[0]),
        c(x.shape[1]),
        windows(windows),
        channels_last(format_of(x, "avg_pool2d") == MemoryFormat::channels_last) {}

  int64_t planes() const { return channels_last ? n : n * c; }
  int64_t pixel() const { return channels_last ? c : 1; }
  int64_t x_row() const { return windows.w.extent * pixel(); }
  int64_t y_row() const { return windows.w.positions * pixel(); }
};

// to += from.
template <class T>
void add(const T* from, int64_t count, acc_t<T>* to) {
  using A = acc_t<T>;
  for_each_lanes<A>(count, [&](int64_t i, auto lanes, int) {
    store(to + i, load(to + i, lanes) + load(from + i, lanes), lanes);
  });
}
template <class A>
void divide(A* values, int64_t count, A divisor) {
  for (int64_t i = 0; i < count; ++i) values[i] /= divisor;
}
template <class T>
void narrow(const acc_t<T>* from, int64_t count, T* to) {
  using A = acc_t<T>;
  for_each_lanes<A>(
      count, [&](int64_t i, auto lanes, int) { store(to + i, load(from + i, lanes), lanes); });
}

// One row of y: the rows of its windows are added up first, then the columns of each window.
template <class T>
void average_row(const AvgGeometry& g, const T* plane, int64_t i, acc_t<T>* columns,
                 acc_t<T>* means, T* y) {
  using A = acc_t<T>;
  const int64_t row = g.x_row(), pixel = g.pixel();
  const AvgAxis::Range rows = g.windows.h.window(i);
  std::fill(columns, columns + row, A(0));
  for (int64_t r = rows.begin; r < rows.end; ++r) add(plane + r * row, row, columns);
  std::fill(means, means + g.y_row(), A(0));
  for (int64_t j = 0; j < g.windows.w.positions; ++j) {
    const AvgAxis::Range range = g.windows.w.window(j);
    const A divisor = static_cast<A>(g.windows.divisor_of(rows, range));
    A* to = means + j * pixel;
    if (pixel == 1) {
      A sum(0);
      for (int64_t s = range.begin; s < range.end; ++s) sum += columns[s];
      *to = sum / divisor;
    } else {
      for (int64_t s = range.begin; s < range.end; ++s) add(columns + s * pixel, pixel, to);
      divide(to, pixel, divisor);
    }
  }
  narrow(means, g.y_row(), y);
}

// One row of dx: every window that holds it gives each of its columns its share.
template <class T>
void share_row(const AvgGeometry& g, const T* dy, int64_t at, acc_t<T>* share, acc_t<T>* sums,
               T* dx) {
  using A = acc_t<T>;
  const int64_t pixel = g.pixel();
  std::fill(sums, sums + g.x_row(), A(0));
  const AvgAxis::Range holders = g.windows.h.holders(at);
  for (int64_t i = holders.begin; i < holders.end; ++i) {
    const AvgAxis::Range rows = g.windows.h.window(i);
    for (int64_t j = 0; j < g.windows.w.positions; ++j) {
      const AvgAxis::Range range = g.windows.w.window(j);
      const A divisor = static_cast<A>(g.windows.divisor_of(rows, range));
      const T* from = dy + i * g.y_row() + j * pixel;
      if (pixel == 1) {
        const A value = static_cast<A>(*from) / divisor;
        for (int64_t s = range.begin; s < range.end; ++s) sums[s] += value;
      } else {
        std::fill(share, share + pixel, A(0));
        add(from, pixel, share);
        divide(share, pixel, divisor);
        for (int64_t s = range.begin; s < range.end; ++s) add(share, pixel, sums + s * pixel);
      }
    }
  }
  narrow(sums, g.x_row(), dx);
}

}  // namespace

void run(Cpu& cpu, const AvgPool2dForward& args) {
  const AvgGeometry g(args.x, args.windows);
  if (args.y.numel() == 0) return;
  const int64_t p = g.windows.h.positions, plane = g.windows.h.extent * g.x_row();
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const T* x = args.x.as<T>();
    T* y = args.y.as<T>();
    const int64_t rows = std::max<int64_t>(1, kTile * p / plane);
    parallel_tiles(cpu, g.planes() * p, rows, [&](int64_t begin, int64_t end) {
      const Workspace<acc_t<T>> columns(cpu, g.x_row()), means(cpu, g.y_row());
      for (int64_t line = begin; line < end; ++line) {
        average_row(g, x + line / p * plane, line % p, columns.data(), means.data(),
                    y + line * g.y_row());
      }
    });
  });
}

void run(Cpu& cpu, const AvgPool2dBackward& args) {
  const AvgGeometry g(args.dx, args.windows);
  if (args.dx.numel() == 0) return;
  const int64_t h = g.windows.h.extent, plane = g.windows.h.positions * g.y_row();
  visit(Floating{}, args.dx.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const T* dy = args.dy.as<T>();
    T* dx = args.dx.as<T>();
    const int64_t rows = std::max<int64_t>(1, kTile / g.x_row());
    parallel_tiles(cpu, g.planes() * h, rows, [&](int64_t begin, int64_t end) {
      const Workspace<acc_t<T>> share(cpu, g.pixel()), sums(cpu, g.x_row());
      for (int64_t line = begin; line < end; ++line) {
        share_row(g, dy + line / h * plane, line % h, share.data(), sums.data(),
                  dx + line * g.x_row());
      }
    });
  });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(AvgPool2dForward)
GRADUS_DISPATCH(AvgPool2dBackward)
