#include "tests/support/reference_pool.h"

#include <cmath>

namespace gradus::ref {
namespace {

int64_t output_extent(int64_t x, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation,
                      bool ceil_mode) {
  require(2 * padding <= kernel, "max_pool2d: padding at most half the kernel");
  const int64_t room = x + 2 * padding - dilation * (kernel - 1) - 1;
  require(room + (ceil_mode ? stride - 1 : 0) >= 0,
          "max_pool2d: kernel larger than the padded input");
  if (!ceil_mode) return room / stride + 1;
  const int64_t count = (room + stride - 1) / stride + 1;
  return (count - 1) * stride < x + padding ? count : count - 1;
}

}  // namespace

MaxPool2d max_pool2d(const Array& x, const MaxPool2dOptions& o) {
  require(x.shape.rank() == 4, "max_pool2d: x must have 4 axes");
  const int64_t height = x.shape[2], width = x.shape[3];
  const Shape shape = {
      x.shape[0], x.shape[1],
      output_extent(height, o.kernel_h, o.stride_h, o.padding_h, o.dilation_h, o.ceil_mode),
      output_extent(width, o.kernel_w, o.stride_w, o.padding_w, o.dilation_w, o.ceil_mode)};
  MaxPool2d out{zeros(shape), zeros(shape)};
  for (int64_t n = 0; n < shape[0]; ++n) {
    for (int64_t c = 0; c < shape[1]; ++c) {
      for (int64_t p = 0; p < shape[2]; ++p) {
        for (int64_t q = 0; q < shape[3]; ++q) {
          int64_t winner = -1;
          double largest = 0;
          for (int64_t r = 0; r < o.kernel_h; ++r) {
            for (int64_t s = 0; s < o.kernel_w; ++s) {
              const int64_t h = p * o.stride_h - o.padding_h + r * o.dilation_h;
              const int64_t w = q * o.stride_w - o.padding_w + s * o.dilation_w;
              if (h < 0 || h >= height || w < 0 || w >= width) continue;
              const double value = x.at(n, c, h, w);
              const bool first_nan = std::isnan(value) && !std::isnan(largest);
              if (winner >= 0 && !(value > largest) && !first_nan) continue;
              winner = h * width + w;
              largest = value;
            }
          }
          require(winner >= 0, "max_pool2d: a window holds padding only");
          out.y.at(n, c, p, q) = largest;
          out.indices.at(n, c, p, q) = static_cast<double>(winner);
        }
      }
    }
  }
  return out;
}

Array max_pool2d_backward(const Array& x, const Array& dy, const MaxPool2dOptions& options) {
  const MaxPool2d forward = max_pool2d(x, options);
  require(dy.shape == forward.y.shape, "max_pool2d: dy must have the shape of y");
  const int64_t windows = dy.shape[2] * dy.shape[3];
  const int64_t plane = x.shape[2] * x.shape[3];
  Sums dx(x.shape);
  for (int64_t i = 0; i < dy.numel(); ++i) {
    dx[i / windows * plane + static_cast<int64_t>(forward.indices[i])] += dy[i];
  }
  return dx.rounded();
}

}  // namespace gradus::ref
