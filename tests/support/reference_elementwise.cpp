#include "tests/support/reference_elementwise.h"

#include <algorithm>
#include <cmath>

#include "tests/support/reference_broadcast.h"

namespace gradus::ref {

Shape broadcast(const Shape& a, const Shape& b) {
  const int rank = std::max(a.rank(), b.rank());
  Shape result = Shape::filled(rank, 1);
  for (int back = 1; back <= rank; ++back) {
    const int64_t of_a = back <= a.rank() ? a[a.rank() - back] : 1;
    const int64_t of_b = back <= b.rank() ? b[b.rank() - back] : 1;
    require(of_a == of_b || of_a == 1 || of_b == 1, "broadcast: extents differ and none is 1");
    result[rank - back] = of_a == 1 ? of_b : of_a;
  }
  return result;
}

int64_t broadcast_index(int64_t index, const Shape& target, const Shape& shape) {
  int64_t result = 0, weight = 1;
  for (int back = 1; back <= target.rank(); ++back) {
    const int64_t coordinate = index % target[target.rank() - back];
    index /= target[target.rank() - back];
    if (back > shape.rank()) continue;
    const int64_t extent = shape[shape.rank() - back];
    result += (extent == 1 ? 0 : coordinate) * weight;
    weight *= extent;
  }
  return result;
}

namespace {

template <class F>
Array combine(const Array& a, const Array& b, F f) {
  Array y = zeros(broadcast(a.shape, b.shape));
  for (int64_t i = 0; i < y.numel(); ++i) {
    const Real value = f(Real(a[broadcast_index(i, y.shape, a.shape)]),
                         Real(b[broadcast_index(i, y.shape, b.shape)]));
    y[i] = static_cast<double>(value);
  }
  return y;
}

// f(a, b) gives the two partial derivatives.
template <class F>
PairGradients spread(const Array& a, const Array& b, const Array& dy, F f) {
  require(dy.shape == broadcast(a.shape, b.shape), "dy must have the broadcast shape");
  Sums da(a.shape), db(b.shape);
  for (int64_t i = 0; i < dy.numel(); ++i) {
    const int64_t ai = broadcast_index(i, dy.shape, a.shape);
    const int64_t bi = broadcast_index(i, dy.shape, b.shape);
    const auto [by_a, by_b] = f(Real(a[ai]), Real(b[bi]));
    da[ai] += dy[i] * by_a;
    db[bi] += dy[i] * by_b;
  }
  return {da.rounded(), db.rounded()};
}

using Partials = std::pair<Real, Real>;

Array masked(const Array& x, const Array& mask, double p) {
  require(x.shape == mask.shape, "dropout: mask must have the shape of x");
  Array y = zeros(x.shape);
  for (int64_t i = 0; i < x.numel(); ++i) {
    if (mask[i] != 0 && p < 1) y[i] = static_cast<double>(x[i] / (1 - Real(p)));
  }
  return y;
}

}  // namespace

Array add(const Array& a, const Array& b) {
  return combine(a, b, [](Real u, Real v) { return u + v; });
}
Array sub(const Array& a, const Array& b) {
  return combine(a, b, [](Real u, Real v) { return u - v; });
}
Array mul(const Array& a, const Array& b) {
  return combine(a, b, [](Real u, Real v) { return u * v; });
}
Array div(const Array& a, const Array& b) {
  return combine(a, b, [](Real u, Real v) { return u / v; });
}

PairGradients add_backward(const Array& a, const Array& b, const Array& dy) {
  return spread(a, b, dy, [](Real, Real) { return Partials(1, 1); });
}
PairGradients sub_backward(const Array& a, const Array& b, const Array& dy) {
  return spread(a, b, dy, [](Real, Real) { return Partials(1, -1); });
}
PairGradients mul_backward(const Array& a, const Array& b, const Array& dy) {
  return spread(a, b, dy, [](Real u, Real v) { return Partials(v, u); });
}
PairGradients div_backward(const Array& a, const Array& b, const Array& dy) {
  return spread(a, b, dy, [](Real u, Real v) { return Partials(1 / v, -u / (v * v)); });
}

Array relu(const Array& x) {
  Array y = x;
  for (double& value : y.data) {
    if (value <= 0) value = 0;
  }
  return y;
}

Array relu_backward(const Array& x, const Array& dy) {
  Array dx = dy;
  for (int64_t i = 0; i < x.numel(); ++i) {
    if (x[i] <= 0) dx[i] = 0;
  }
  return dx;
}

Array dropout(const Array& x, const Array& mask, double p) { return masked(x, mask, p); }

Array dropout_backward(const Array& dy, const Array& mask, double p) { return masked(dy, mask, p); }

}  // namespace gradus::ref
