#include "core/ops/avg_pool2d.h"

#include "cpu/chained_row.h"
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
  Workspace<AvgAxis::Range> columns;  // of each window of a row

  AvgGeometry(Cpu& cpu, const AnyView& x, const AvgWindows& windows)
      : n(x.shape[0]),
        c(x.shape[1]),
        windows(windows),
        channels_last(format_of(x, "avg_pool2d") == MemoryFormat::channels_last),
        columns(cpu, windows.w.positions) {
    for (int64_t j = 0; j < windows.w.positions; ++j) columns.data()[j] = windows.w.window(j);
  }

  int64_t planes() const { return channels_last ? n : n * c; }
  int64_t pixel() const { return channels_last ? c : 1; }
  int64_t x_row() const { return windows.w.extent * pixel(); }
  int64_t y_row() const { return windows.w.positions * pixel(); }
};

// Elements of a window along an axis, and windows that hold an element, at most.
int64_t most_elements(const AvgAxis& axis) {
  return axis.adaptive ? axis.extent / axis.positions + 2 : std::min(axis.kernel, axis.extent);
}
int64_t most_holders(const AvgAxis& axis) {
  const int64_t most =
      axis.adaptive ? axis.positions / axis.extent + 2 : axis.kernel / axis.stride + 1;
  return std::min(most, axis.positions);
}

// Σ values, in halves down to chains.
template <class A>
A sum_values(const A* values, int64_t count);
template <class A>
__attribute__((noinline)) A sum_halves(const A* values, int64_t count) {
  const int64_t half = count / 2;
  return sum_values(values, half) + sum_values(values + half, count - half);
}
template <class A>
inline A sum_values(const A* values, int64_t count) {
  if (count > ChainedRow<A>::kChain) return sum_halves(values, count);
  A sum(0);
  for (int64_t i = 0; i < count; ++i) sum += values[i];
  return sum;
}

template <class A>
void divide(A* values, int64_t count, A divisor) {
  for (int64_t i = 0; i < count; ++i) values[i] /= divisor;
}
// The divisors of a row of windows, kept from row to row as long as they are the same.
template <class A>
class Divisors {
 public:
  Divisors(Cpu& cpu, const AvgGeometry& g) : values_(cpu, g.windows.w.positions) {}
  const A* of(const AvgGeometry& g, const AvgAxis::Range& rows) {
    if (rows.counted != counted_ || rows.size() != size_) {
      counted_ = rows.counted;
      size_ = rows.size();
      for (int64_t j = 0; j < g.windows.w.positions; ++j)
        values_.data()[j] = static_cast<A>(g.windows.divisor_of(rows, g.columns.data()[j]));
    }
    return values_.data();
  }

 private:
  Workspace<A> values_;
  int64_t counted_ = -1, size_ = -1;
};

// One row of y: the rows of its windows are added up first, then the columns of each window.
template <class T>
void average_row(const AvgGeometry& g, const T* plane, int64_t i, Divisors<acc_t<T>>& divisors,
                 ChainedRow<acc_t<T>>& of_rows, ChainedRow<acc_t<T>>& of_columns, acc_t<T>* columns,
                 acc_t<T>* means, T* y) {
  using A = acc_t<T>;
  const int64_t row = g.x_row(), pixel = g.pixel(), count = g.windows.w.positions;
  const AvgAxis::Range rows = g.windows.h.window(i);
  const A* divisor = divisors.of(g, rows);
  of_rows.start(columns);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    add(plane + r * row, row, columns);
    of_rows.step(1);
  }
  of_rows.finish();
  if (pixel == 1) {
    for (int64_t j = 0; j < count; ++j) {
      const AvgAxis::Range range = g.columns.data()[j];
      means[j] = sum_values(columns + range.begin, range.size());
    }
    for (int64_t j = 0; j < count; ++j) means[j] /= divisor[j];
  } else {
    for (int64_t j = 0; j < count; ++j) {
      const AvgAxis::Range range = g.columns.data()[j];
      A* to = means + j * pixel;
      of_columns.start(to);
      for (int64_t s = range.begin; s < range.end; ++s) {
        add(columns + s * pixel, pixel, to);
        of_columns.step(1);
      }
      of_columns.finish();
      divide(to, pixel, divisor[j]);
    }
  }
  convert_run(means, g.y_row(), y);
}

// To each column of the windows [first, end) its share.
template <class A>
void share_columns(const AvgGeometry& g, int64_t first, int64_t end, const A* shares, A* sums) {
  const AvgAxis::Range* const columns = g.columns.data();
  const int64_t pixel = g.pixel();
  if (pixel == 1) {
    for (int64_t j = first; j < end; ++j) {
      for (int64_t s = columns[j].begin; s < columns[j].end; ++s) sums[s] += shares[j];
    }
    return;
  }
  for (int64_t j = first; j < end; ++j) {
    for (int64_t s = columns[j].begin; s < columns[j].end; ++s)
      add(shares + j * pixel, pixel, sums + s * pixel);
  }
}

// One row of dx: every window that holds it gives each of its columns its share.
template <class T>
void share_row(const AvgGeometry& g, const T* dy, int64_t at, Divisors<acc_t<T>>& divisors,
               ChainedRow<acc_t<T>>& of_windows, acc_t<T>* shares, acc_t<T>* sums, T* dx) {
  using A = acc_t<T>;
  const int64_t pixel = g.pixel(), count = g.windows.w.positions;
  const AvgAxis::Range holders = g.windows.h.holders(at);
  const int64_t overlap = most_holders(g.windows.w);
  // At a time so many windows that moving the row costs little beside adding them.
  const int64_t chunk =
      std::max(ChainedRow<A>::kChain, 8 * g.windows.w.extent / most_elements(g.windows.w));
  of_windows.start(sums);
  for (int64_t i = holders.begin; i < holders.end; ++i) {
    const A* divisor = divisors.of(g, g.windows.h.window(i));
    std::fill(shares, shares + g.y_row(), A(0));
    add(dy + i * g.y_row(), g.y_row(), shares);
    if (pixel == 1) {
      for (int64_t j = 0; j < count; ++j) shares[j] /= divisor[j];
    } else {
      for (int64_t j = 0; j < count; ++j) divide(shares + j * pixel, pixel, divisor[j]);
    }
    for (int64_t first = 0; first < count; first += chunk) {
      const int64_t end = std::min(first + chunk, count);
      share_columns(g, first, end, shares, sums);
      of_windows.step(std::min(overlap, end - first));
    }
  }
  of_windows.finish();
  convert_run(sums, g.x_row(), dx);
}

}  // namespace

void run(Cpu& cpu, const AvgPool2dForward& args) {
  if (args.y.numel() == 0) return;
  const AvgGeometry g(cpu, args.x, args.windows);
  const int64_t p = g.windows.h.positions, plane = g.windows.h.extent * g.x_row();
  visit(Floating{}, args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const T* x = args.x.as<T>();
    T* y = args.y.as<T>();
    const int64_t rows = std::max<int64_t>(1, kTile * p / plane);
    parallel_tiles(cpu, g.planes() * p, rows, [&](int64_t begin, int64_t end) {
      const Workspace<acc_t<T>> columns(cpu, g.x_row()), means(cpu, g.y_row());
      Divisors<acc_t<T>> divisors(cpu, g);
      ChainedRow<acc_t<T>> of_rows(cpu, g.x_row(), most_elements(g.windows.h));
      ChainedRow<acc_t<T>> of_columns(cpu, g.pixel(), most_elements(g.windows.w));
      for (int64_t line = begin; line < end; ++line) {
        average_row(g, x + line / p * plane, line % p, divisors, of_rows, of_columns,
                    columns.data(), means.data(), y + line * g.y_row());
      }
    });
  });
}

void run(Cpu& cpu, const AvgPool2dBackward& args) {
  if (args.dx.numel() == 0) return;
  const AvgGeometry g(cpu, args.dx, args.windows);
  const int64_t h = g.windows.h.extent, plane = g.windows.h.positions * g.y_row();
  visit(Floating{}, args.dx.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const T* dy = args.dy.as<T>();
    T* dx = args.dx.as<T>();
    const int64_t rows = std::max<int64_t>(1, kTile / g.x_row());
    parallel_tiles(cpu, g.planes() * h, rows, [&](int64_t begin, int64_t end) {
      const Workspace<acc_t<T>> shares(cpu, g.y_row()), sums(cpu, g.x_row());
      Divisors<acc_t<T>> divisors(cpu, g);
      ChainedRow<acc_t<T>> of_windows(cpu, g.x_row(),
                                      most_holders(g.windows.h) * most_holders(g.windows.w));
      for (int64_t line = begin; line < end; ++line) {
        share_row(g, dy + line / h * plane, line % h, divisors, of_windows, shares.data(),
                  sums.data(), dx + line * g.x_row());
      }
    });
  });
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(AvgPool2dForward)
GRADUS_DISPATCH(AvgPool2dBackward)
