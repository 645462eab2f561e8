#include "tests/support/reference_softmax.h"

#include <cmath>
#include <limits>

namespace gradus::ref {
namespace {

// x seen as rows of `length` values that lie `stride` apart.
struct AxisRows {
  int64_t outer = 1, length = 0, stride = 1;

  AxisRows(const Shape& shape, int axis) {
    const int from_front = axis < 0 ? axis + shape.rank() : axis;
    require(from_front >= 0 && from_front < shape.rank(), "softmax: axis outside the rank");
    for (int i = 0; i < from_front; ++i) outer *= shape[i];
    length = shape[from_front];
    for (int i = from_front + 1; i < shape.rank(); ++i) stride *= shape[i];
  }

  int64_t rows() const { return outer * stride; }
  int64_t at(int64_t row, int64_t k) const {
    return (row / stride * length + k) * stride + row % stride;
  }
};

// The largest value and log(sum of exp(x - largest)) of one row; a NaN reaches both.
struct RowTotal {
  Real largest = -std::numeric_limits<Real>::infinity();
  Real log_sum = 0;

  RowTotal(const Array& x, const AxisRows& rows, int64_t row) {
    for (int64_t k = 0; k < rows.length; ++k) {
      const Real value = x[rows.at(row, k)];
      if (std::isnan(value) || value > largest) largest = value;
      if (std::isnan(value)) break;
    }
    Real total = 0;
    for (int64_t k = 0; k < rows.length; ++k) total += std::exp(x[rows.at(row, k)] - largest);
    log_sum = std::log(total);
  }
};

}  // namespace

Array log_softmax(const Array& x, int axis) {
  const AxisRows rows(x.shape, axis);
  Array y = zeros(x.shape);
  for (int64_t row = 0; row < rows.rows(); ++row) {
    const RowTotal total(x, rows, row);
    for (int64_t k = 0; k < rows.length; ++k) {
      const int64_t i = rows.at(row, k);
      y[i] = static_cast<double>(x[i] - total.largest - total.log_sum);
    }
  }
  return y;
}

Array softmax(const Array& x, int axis) {
  const AxisRows rows(x.shape, axis);
  Array y = zeros(x.shape);
  for (int64_t row = 0; row < rows.rows(); ++row) {
    const RowTotal total(x, rows, row);
    for (int64_t k = 0; k < rows.length; ++k) {
      const int64_t i = rows.at(row, k);
      y[i] = static_cast<double>(std::exp(x[i] - total.largest) / std::exp(total.log_sum));
    }
  }
  return y;
}

// The whole Jacobian of a row: d y[j] / d x[k] = y[j] * ((j = k) - y[k]).
Array softmax_backward(const Array& x, int axis, const Array& dy) {
  require(dy.shape == x.shape, "softmax: dy must have the shape of x");
  const AxisRows rows(x.shape, axis);
  Array dx = zeros(x.shape);
  for (int64_t row = 0; row < rows.rows(); ++row) {
    const RowTotal total(x, rows, row);
    const auto y = [&](int64_t k) {
      return std::exp(x[rows.at(row, k)] - total.largest - total.log_sum);
    };
    // Sum over j of dy[j] * y[j], which every k shares.
    Real shared = 0;
    for (int64_t j = 0; j < rows.length; ++j) shared += dy[rows.at(row, j)] * y(j);
    for (int64_t k = 0; k < rows.length; ++k) {
      const int64_t i = rows.at(row, k);
      dx[i] = static_cast<double>(y(k) * dy[i] - y(k) * shared);
    }
  }
  return dx;
}

// d y[j] / d x[k] = (j = k) - softmax[k].
Array log_softmax_backward(const Array& x, int axis, const Array& dy) {
  require(dy.shape == x.shape, "log_softmax: dy must have the shape of x");
  const AxisRows rows(x.shape, axis);
  Array dx = zeros(x.shape);
  for (int64_t row = 0; row < rows.rows(); ++row) {
    const RowTotal total(x, rows, row);
    Real shared = 0;
    for (int64_t j = 0; j < rows.length; ++j) shared += dy[rows.at(row, j)];
    for (int64_t k = 0; k < rows.length; ++k) {
      const int64_t i = rows.at(row, k);
      const Real probability = std::exp(x[i] - total.largest - total.log_sum);
      dx[i] = static_cast<double>(dy[i] - probability * shared);
    }
  }
  return dx;
}

}  // namespace gradus::ref
