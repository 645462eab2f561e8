#include "tests/support/reference_matmul.h"

#include "tests/support/reference_broadcast.h"

namespace gradus::ref {
namespace {

Shape leading_axes(const Shape& shape) {
  return Shape(std::span<const int64_t>(shape.begin(), shape.end() - 2));
}

// Calls f(y index, a index, b index) for every product, and returns y's shape.
template <class F>
Shape each_product(const Array& a, const Array& b, F f) {
  require(a.shape.rank() >= 2 && b.shape.rank() >= 2, "matmul: a and b need at least 2 axes");
  const int64_t rows = a.shape[a.shape.rank() - 2];
  const int64_t inner = a.shape[a.shape.rank() - 1];
  const int64_t columns = b.shape[b.shape.rank() - 1];
  require(b.shape[b.shape.rank() - 2] == inner, "matmul: inner extents differ");
  const Shape batch = broadcast(leading_axes(a.shape), leading_axes(b.shape));
  for (int64_t matrix = 0; matrix < batch.numel(); ++matrix) {
    const int64_t a_matrix = broadcast_index(matrix, batch, leading_axes(a.shape));
    const int64_t b_matrix = broadcast_index(matrix, batch, leading_axes(b.shape));
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        for (int64_t k = 0; k < inner; ++k) {
          f((matrix * rows + i) * columns + j, (a_matrix * rows + i) * inner + k,
            (b_matrix * inner + k) * columns + j);
        }
      }
    }
  }
  Shape y = batch;
  y.append(rows);
  y.append(columns);
  return y;
}

}  // namespace

Array matmul(const Array& a, const Array& b) {
  Sums y(each_product(a, b, [](int64_t, int64_t, int64_t) {}));
  each_product(a, b, [&](int64_t yi, int64_t ai, int64_t bi) { y[yi] += Real(a[ai]) * b[bi]; });
  return y.rounded();
}

MatmulGradients matmul_backward(const Array& a, const Array& b, const Array& dy) {
  Sums da(a.shape), db(b.shape);
  each_product(a, b, [&](int64_t yi, int64_t ai, int64_t bi) {
    da[ai] += Real(dy[yi]) * b[bi];
    db[bi] += Real(dy[yi]) * a[ai];
  });
  return {da.rounded(), db.rounded()};
}

Array linear(const Array& x, const Array& w, const Array& b) {
  const int64_t in = w.shape[1], out = w.shape[0];
  require(x.shape.rank() >= 1 && x.shape[x.shape.rank() - 1] == in, "linear: x must be [..., in]");
  Shape shape = x.shape;
  shape[shape.rank() - 1] = out;
  Sums y(shape);
  for (int64_t row = 0; row * out < shape.numel(); ++row) {
    for (int64_t o = 0; o < out; ++o) {
      y[row * out + o] = b.empty() ? 0.0 : b[o];
      for (int64_t i = 0; i < in; ++i) y[row * out + o] += Real(x[row * in + i]) * w[o * in + i];
    }
  }
  return y.rounded();
}

LinearGradients linear_backward(const Array& x, const Array& w, const Array& dy) {
  const int64_t in = w.shape[1], out = w.shape[0];
  require(dy.shape.rank() >= 1 && dy.shape[dy.shape.rank() - 1] == out,
          "linear: dy must be [..., out]");
  Sums dx(x.shape), dw(w.shape), db({out});
  for (int64_t row = 0; row * out < dy.numel(); ++row) {
    for (int64_t o = 0; o < out; ++o) {
      const Real d = dy[row * out + o];
      db[o] += d;
      for (int64_t i = 0; i < in; ++i) {
        dx[row * in + i] += d * w[o * in + i];
        dw[o * in + i] += d * x[row * in + i];
      }
    }
  }
  return {dx.rounded(), dw.rounded(), db.rounded()};
}

}  // namespace gradus::ref
