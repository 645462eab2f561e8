#include "tests/support/reference_lrn.h"

#include <algorithm>
#include <cmath>

namespace gradus::ref {
namespace {

// x [n, c, ...] seen as [n, c, s].
struct Layout {
  int64_t n, c, s = 1;

  explicit Layout(const Array& x) {
    require(x.shape.rank() >= 2, "local_response_norm: x must be [n, c, ...]");
    n = x.shape[0];
    c = x.shape[1];
    for (int axis = 2; axis < x.shape.rank(); ++axis) s *= x.shape[axis];
  }
  int64_t at(int64_t i, int64_t channel, int64_t k) const { return (i * c + channel) * s + k; }
};

// f(j) for each channel that the window of `channel` reads.
template <class F>
void window(int64_t channel, int64_t channels, int64_t size, F f) {
  const int64_t first = channel - size / 2;
  for (int64_t j = first; j < first + size; ++j) {
    if (j >= 0 && j < channels) f(j);
  }
}

std::vector<Real> denominators(const Array& x, const Layout& layout, const LrnOptions& options) {
  require(options.size >= 1, "local_response_norm: size must be at least 1");
  std::vector<Real> denom(x.data.size());
  for (int64_t i = 0; i < layout.n; ++i) {
    for (int64_t c = 0; c < layout.c; ++c) {
      for (int64_t k = 0; k < layout.s; ++k) {
        Real squares = 0;
        window(c, layout.c, options.size, [&](int64_t j) {
          const Real value = x[layout.at(i, j, k)];
          squares += value * value;
        });
        denom[static_cast<size_t>(layout.at(i, c, k))] =
            Real(options.k) + Real(options.alpha) / options.size * squares;
      }
    }
  }
  return denom;
}

}  // namespace

LrnForward local_response_norm(const Array& x, const LrnOptions& options) {
  const std::vector<Real> denom = denominators(x, Layout(x), options);
  LrnForward out{zeros(x.shape), zeros(x.shape)};
  for (int64_t i = 0; i < x.numel(); ++i) {
    const Real d = denom[static_cast<size_t>(i)];
    out.denom[i] = static_cast<double>(d);
    out.y[i] = static_cast<double>(x[i] * std::pow(d, -Real(options.beta)));
  }
  return out;
}

// Each output hands its share to everything it read: to its own x by the factor denom^-beta, and
// through denom to each x of its window.
Array local_response_norm_backward(const Array& x, const LrnOptions& options, const Array& dy) {
  require(dy.shape == x.shape, "local_response_norm: dy must have the shape of x");
  const Layout layout(x);
  const std::vector<Real> denom = denominators(x, layout, options);
  const Real alpha = options.alpha, beta = options.beta;
  Sums dx(x.shape);
  for (int64_t i = 0; i < layout.n; ++i) {
    for (int64_t c = 0; c < layout.c; ++c) {
      for (int64_t k = 0; k < layout.s; ++k) {
        const int64_t here = layout.at(i, c, k);
        const Real d = denom[static_cast<size_t>(here)];
        dx[here] += dy[here] * std::pow(d, -beta);
        // y = x * denom^-beta
        const Real ddenom = dy[here] * x[here] * -beta * std::pow(d, -beta - 1);
        // denom = k + alpha/size * sum of squares
        window(c, layout.c, options.size, [&](int64_t j) {
          const int64_t there = layout.at(i, j, k);
          dx[there] += ddenom * alpha / options.size * 2 * x[there];
        });
      }
    }
  }
  return dx.rounded();
}

}  // namespace gradus::ref
