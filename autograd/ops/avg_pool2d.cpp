#include "autograd/ops/avg_pool2d.h"

#include "autograd/ops/sum.h"
#include "autograd/tape.h"
#include "core/launch.h"
#include "core/ops/avg_pool2d.h"

namespace gradus {
namespace {

struct AvgPool2dNode final : Node {
  std::string_view op;
  Shape x_shape;
  TensorOptions x_options;
  AvgWindows windows;

  std::string_view name() const override { return op; }
  void backward(const Tensor& dy, Gradients& grads) override;
};

void check_x(const Tensor& x, std::string_view op) {
  check((x.rank() == 4 || x.rank() == 3) && is_floating(x.dtype()), op,
        "expected x [n, c, h, w] or [c, h, w], floating, got ", x);
  check(x.size(-2) > 0 && x.size(-1) > 0, op, "expected h, w > 0, got ", x);
}

Tensor pool(const Tensor& x_given, const AvgWindows& windows, std::string_view op) {
  const Tensor x = dense_either(x_given);
  const TensorOptions like_x{
      .dtype = x.dtype(), .device = x.device(), .format = format_of(x.raw(), op)};
  Tensor y =
      Tensor::empty({x.size(0), x.size(1), windows.h.positions, windows.w.positions}, like_x);
  launch(AvgPool2dForward{.x = x.raw(), .y = y.raw(), .windows = windows});
  if (auto node = make_node<AvgPool2dNode>(x)) {
    node->op = op;
    node->x_shape = x.shape();
    node->x_options = like_x;
    node->windows = windows;
    attach(y, std::move(node));
  }
  return y;
}

// Whether there is one window, of the whole image, divided by the number of its elements, that a
// thread per window would be slower at: not if it has few pixels, with the channels side by side.
bool is_image(const Tensor& x, const AvgWindows& windows) {
  constexpr int64_t kFewPixels = 64;
  if (windows.h.positions != 1 || windows.w.positions != 1) return false;
  const auto rows = windows.h.window(0), columns = windows.w.window(0);
  const int64_t pixels = x.size(2) * x.size(3);
  if (x.options().format != MemoryFormat::contiguous && pixels <= kFewPixels) return false;
  return rows.size() * columns.size() == pixels && windows.divisor_of(rows, columns) == pixels;
}

// One window, as a plain mean, which sums in parallel. In the format of x.
Tensor mean_of_images(const Tensor& x) {
  const Tensor y = mean(x, {2, 3}, true);
  if (x.options().format == MemoryFormat::contiguous) return y;
  return y.reshape({x.size(0), 1, 1, x.size(1)}).transpose(1, 3);
}

}  // namespace

Tensor avg_pool2d(const Tensor& x, const AvgPool2dOptions& options) {
  constexpr std::string_view op = "avg_pool2d";
  check_x(x, op);
  if (x.rank() == 3) return avg_pool2d(x.unsqueeze(0), options).squeeze(0);
  const Pair stride = options.stride.value_or(options.kernel_size);
  const Window window{.kernel = options.kernel_size, .stride = stride, .padding = options.padding};
  check_window(window, x.size(2), x.size(3), op, options.ceil_mode);
  check_pool_padding(window, op);
  check(options.divisor_override != int64_t(0), op, "divisor_override must not be 0");
  const auto axis = [&](int i) {
    const auto k = static_cast<size_t>(i);
    const int64_t extent = x.size(2 + i);
    return AvgAxis{.extent = extent,
                   .positions = window.pooled_positions(i, extent, options.ceil_mode),
                   .kernel = window.kernel[k],
                   .stride = stride[k],
                   .padding = window.padding[k]};
  };
  const AvgWindows windows{.h = axis(0),
                           .w = axis(1),
                           .count_include_pad = options.count_include_pad,
                           .divisor = options.divisor_override.value_or(0)};
  return is_image(x, windows) ? mean_of_images(x) : pool(x, windows, op);
}

Tensor adaptive_avg_pool2d(const Tensor& x, Pair output_size) {
  constexpr std::string_view op = "adaptive_avg_pool2d";
  check_x(x, op);
  if (x.rank() == 3) return adaptive_avg_pool2d(x.unsqueeze(0), output_size).squeeze(0);
  check(output_size[0] > 0 && output_size[1] > 0, op, "output_size must be positive, got ",
        output_size[0], "x", output_size[1]);
  if (output_size == Pair(1)) return mean_of_images(x);
  const auto axis = [&](int i) {
    return AvgAxis{.extent = x.size(2 + i),
                   .positions = output_size[static_cast<size_t>(i)],
                   .adaptive = true};
  };
  return pool(x, {.h = axis(0), .w = axis(1)}, op);
}

void AvgPool2dNode::backward(const Tensor& dy_given, Gradients& grads) {
  const Tensor dy = dense(dy_given, x_options.format);
  Tensor dx = Tensor::empty(x_shape, x_options);
  launch(AvgPool2dBackward{.dy = dy.raw(), .dx = dx.raw(), .windows = windows});
  grads.set(0, dx);
}

}  // namespace gradus
