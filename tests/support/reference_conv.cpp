#include "tests/support/reference_conv.h"

namespace gradus::ref {
namespace {

int64_t output_extent(int64_t x, int64_t kernel, int64_t stride, int64_t padding,
                      int64_t dilation) {
  const int64_t room = x + 2 * padding - dilation * (kernel - 1) - 1;
  require(room >= 0, "conv2d: kernel larger than the padded input");
  return room / stride + 1;
}

// Calls f(y index, x index, w index) for every product of the convolution, and returns y's shape.
template <class F>
Shape each_product(const Array& x, const Array& w, const Conv2dOptions& o, F f) {
  require(x.shape.rank() == 4 && w.shape.rank() == 4, "conv2d: x and w must have 4 axes");
  require(x.shape[1] == w.shape[1] * o.groups && w.shape[0] % o.groups == 0,
          "conv2d: channels do not fit the groups");
  const Shape y = {x.shape[0], w.shape[0],
                   output_extent(x.shape[2], w.shape[2], o.stride_h, o.padding_h, o.dilation_h),
                   output_extent(x.shape[3], w.shape[3], o.stride_w, o.padding_w, o.dilation_w)};
  const auto at = [](const Shape& shape, int64_t i, int64_t j, int64_t k, int64_t l) {
    return ((i * shape[1] + j) * shape[2] + k) * shape[3] + l;
  };
  for (int64_t n = 0; n < y[0]; ++n) {
    for (int64_t k = 0; k < y[1]; ++k) {
      const int64_t first_channel = k / (w.shape[0] / o.groups) * w.shape[1];
      for (int64_t p = 0; p < y[2]; ++p) {
        for (int64_t q = 0; q < y[3]; ++q) {
          for (int64_t c = 0; c < w.shape[1]; ++c) {
            for (int64_t r = 0; r < w.shape[2]; ++r) {
              for (int64_t s = 0; s < w.shape[3]; ++s) {
                const int64_t row = p * o.stride_h - o.padding_h + r * o.dilation_h;
                const int64_t column = q * o.stride_w - o.padding_w + s * o.dilation_w;
                const bool inside =
                    row >= 0 && row < x.shape[2] && column >= 0 && column < x.shape[3];
                if (!inside) continue;
                f(at(y, n, k, p, q), at(x.shape, n, first_channel + c, row, column),
                  at(w.shape, k, c, r, s));
              }
            }
          }
        }
      }
    }
  }
  return y;
}

Shape output_shape(const Array& x, const Array& w, const Conv2dOptions& options) {
  const Array no_rows{{0, x.shape[1], x.shape[2], x.shape[3]}, {}};
  Shape y = each_product(no_rows, w, options, [](int64_t, int64_t, int64_t) {});
  y[0] = x.shape[0];
  return y;
}

}  // namespace

Array conv2d(const Array& x, const Array& w, const Array& b, const Conv2dOptions& options) {
  Sums y(output_shape(x, w, options));
  const int64_t plane = y.shape[2] * y.shape[3];
  if (!b.empty()) {
    for (int64_t i = 0; i < y.shape.numel(); ++i) y[i] = b[i / plane % y.shape[1]];
  }
  each_product(x, w, options,
               [&](int64_t yi, int64_t xi, int64_t wi) { y[yi] += Real(x[xi]) * w[wi]; });
  return y.rounded();
}

Conv2dGradients conv2d_backward(const Array& x, const Array& w, const Array& dy,
                                const Conv2dOptions& options) {
  require(dy.shape == output_shape(x, w, options), "conv2d: dy must have the shape of y");
  Sums dx(x.shape), dw(w.shape), db({w.shape[0]});
  each_product(x, w, options, [&](int64_t yi, int64_t xi, int64_t wi) {
    dx[xi] += Real(dy[yi]) * w[wi];
    dw[wi] += Real(dy[yi]) * x[xi];
  });
  const int64_t plane = dy.shape[2] * dy.shape[3];
  for (int64_t i = 0; i < dy.numel(); ++i) db[i / plane % dy.shape[1]] += dy[i];
  return {dx.rounded(), dw.rounded(), db.rounded()};
}

}  // namespace gradus::ref
