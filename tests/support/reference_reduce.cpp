#include "tests/support/reference_reduce.h"

#include "tests/support/reference_broadcast.h"

namespace gradus::ref {
namespace {

// `shape` with extent 1 along the reduced axes.
Shape kept(const Shape& shape, const std::vector<int>& axes) {
  if (axes.empty()) return Shape::filled(shape.rank(), 1);
  Shape result = shape;
  for (const int axis : axes) {
    const int from_front = axis < 0 ? axis + shape.rank() : axis;
    require(from_front >= 0 && from_front < shape.rank(), "reduce: axis outside the rank");
    result[from_front] = 1;
  }
  return result;
}

Shape dropped(const Shape& shape, const std::vector<int>& axes) {
  Shape result;
  for (int i = 0; i < shape.rank(); ++i) {
    bool reduced = axes.empty();
    for (const int axis : axes) reduced |= i == (axis < 0 ? axis + shape.rank() : axis);
    if (!reduced) result.append(shape[i]);
  }
  return result;
}

// Values per result.
Real count(const Shape& shape, const std::vector<int>& axes) {
  const Shape small = kept(shape, axes);
  Real product = 1;
  for (int i = 0; i < shape.rank(); ++i) {
    if (small[i] == 1) product *= shape[i];
  }
  return product;
}

Array reduce(const Array& x, const std::vector<int>& axes, bool keepdim, Real divisor) {
  const Shape small = kept(x.shape, axes);
  Sums y(small);
  for (int64_t i = 0; i < x.numel(); ++i) y[broadcast_index(i, x.shape, small)] += x[i];
  for (Real& value : y.data) value /= divisor;
  if (!keepdim) y.shape = dropped(x.shape, axes);
  return y.rounded();
}

Array spread(const Shape& shape, const Array& dy, const std::vector<int>& axes, Real divisor) {
  const Shape small = kept(shape, axes);
  require(dy.numel() == small.numel(), "reduce: dy must have the shape of y");
  Array dx = zeros(shape);
  for (int64_t i = 0; i < dx.numel(); ++i) {
    dx[i] = static_cast<double>(dy[broadcast_index(i, shape, small)] / divisor);
  }
  return dx;
}

}  // namespace

Array sum(const Array& x, const std::vector<int>& axes, bool keepdim) {
  return reduce(x, axes, keepdim, 1);
}

Array mean(const Array& x, const std::vector<int>& axes, bool keepdim) {
  return reduce(x, axes, keepdim, count(x.shape, axes));
}

Array sum_backward(const Shape& shape, const Array& dy, const std::vector<int>& axes) {
  return spread(shape, dy, axes, 1);
}

Array mean_backward(const Shape& shape, const Array& dy, const std::vector<int>& axes) {
  return spread(shape, dy, axes, count(shape, axes));
}

}  // namespace gradus::ref
