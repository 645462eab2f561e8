#include <algorithm>
#include <functional>

#include "tests/support/reference_pool.h"

namespace gradus::ref {
namespace {

// What output p reads along one axis: begin .. end - 1, and how many places count.
struct Span {
  int64_t begin, end;
  int64_t counted;  // with padding
};

struct Axis {
  int64_t outputs;
  std::function<Span(int64_t)> span;
};

Axis window_axis(int64_t x, int64_t kernel, int64_t stride, int64_t padding, bool ceil_mode) {
  require(kernel > 0 && stride > 0, "avg_pool2d: kernel and stride must be positive");
  require(padding >= 0 && 2 * padding <= kernel, "avg_pool2d: padding at most half the kernel");
  const int64_t room = x + 2 * padding - kernel;
  const int64_t reach = room + (ceil_mode ? stride - 1 : 0);
  require(reach >= 0, "avg_pool2d: kernel larger than the padded input");
  int64_t outputs = reach / stride + 1;
  // In ceil mode what is left over has a window if that starts inside x or the padding before it.
  if (ceil_mode && (outputs - 1) * stride >= x + padding) --outputs;
  return {outputs, [=](int64_t p) {
            const int64_t begin = p * stride - padding;
            const int64_t end = std::min(begin + kernel, x + padding);
            return Span{std::max<int64_t>(begin, 0), std::min(end, x), end - begin};
          }};
}

Axis adaptive_axis(int64_t x, int64_t outputs) {
  require(outputs >= 0, "adaptive_avg_pool2d: the size must not be negative");
  return {outputs, [=](int64_t p) {
            const int64_t begin = p * x / outputs;
            const int64_t end = ((p + 1) * x + outputs - 1) / outputs;
            return Span{begin, end, end - begin};
          }};
}

struct Pool {
  Axis h, w;
  bool count_include_pad = true;
  int64_t divisor = 0;

  Shape output(const Shape& x) const { return {x[0], x[1], h.outputs, w.outputs}; }

  // f(index of x, index of y, divisor) for every value that is added.
  template <class F>
  void each(const Shape& x, F f) const {
    require(x.rank() == 4, "avg_pool2d: x must have 4 axes");
    int64_t y = 0;
    for (int64_t plane = 0; plane < x[0] * x[1]; ++plane) {
      for (int64_t p = 0; p < h.outputs; ++p) {
        for (int64_t q = 0; q < w.outputs; ++q, ++y) {
          const Span rows = h.span(p), columns = w.span(q);
          const int64_t inside = (rows.end - rows.begin) * (columns.end - columns.begin);
          const int64_t padded = rows.counted * columns.counted;
          const int64_t count = divisor != 0 ? divisor : count_include_pad ? padded : inside;
          for (int64_t i = rows.begin; i < rows.end; ++i) {
            for (int64_t j = columns.begin; j < columns.end; ++j) {
              f((plane * x[2] + i) * x[3] + j, y, Real(count));
            }
          }
        }
      }
    }
  }

  Array forward(const Array& x) const {
    Sums y(output(x.shape));
    each(x.shape, [&](int64_t from, int64_t to, Real count) { y[to] += x[from] / count; });
    return y.rounded();
  }

  Array backward(const Shape& shape, const Array& dy) const {
    require(dy.shape == output(shape), "avg_pool2d: dy must have the shape of y");
    Sums dx(shape);
    each(shape, [&](int64_t from, int64_t to, Real count) { dx[from] += dy[to] / count; });
    return dx.rounded();
  }
};

Pool pool_of(const Shape& x, const AvgPool2dOptions& o) {
  require(x.rank() == 4, "avg_pool2d: x must have 4 axes");
  return {window_axis(x[2], o.kernel.first, o.stride.first, o.padding.first, o.ceil_mode),
          window_axis(x[3], o.kernel.second, o.stride.second, o.padding.second, o.ceil_mode),
          o.count_include_pad, o.divisor};
}

Pool adaptive_of(const Shape& x, int64_t h, int64_t w) {
  require(x.rank() == 4, "adaptive_avg_pool2d: x must have 4 axes");
  return {adaptive_axis(x[2], h), adaptive_axis(x[3], w)};
}

}  // namespace

Array avg_pool2d(const Array& x, const AvgPool2dOptions& options) {
  return pool_of(x.shape, options).forward(x);
}

Array avg_pool2d_backward(const Shape& shape, const AvgPool2dOptions& options, const Array& dy) {
  return pool_of(shape, options).backward(shape, dy);
}

Array adaptive_avg_pool2d(const Array& x, std::pair<int64_t, int64_t> size) {
  return adaptive_of(x.shape, size.first, size.second).forward(x);
}

Array adaptive_avg_pool2d_backward(const Shape& shape, const Array& dy) {
  require(dy.shape.rank() == 4, "adaptive_avg_pool2d: dy must have 4 axes");
  return adaptive_of(shape, dy.shape[2], dy.shape[3]).backward(shape, dy);
}

}  // namespace gradus::ref
