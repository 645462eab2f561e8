#include "autograd/ops/max_pool2d.h"

#include "autograd/tape.h"
#include "core/launch.h"
#include "core/ops/max_pool2d.h"

namespace gradus {
namespace {

struct MaxPool2dNode final : Node {
  Saved index;  // like y
  Shape x_shape;
  TensorOptions x_options;
  Window window;

  std::string_view name() const override { return "max_pool2d"; }
  void backward(const Tensor& dy, Gradients& grads) override;
};

// Whether every window holds an element of x: one of nothing but padding has no maximum. Dilation
// can leave all of x between two kernel elements.
bool covers_input(const Window& window, int axis, int64_t extent, int64_t positions) {
  const size_t i = static_cast<size_t>(axis);
  const int64_t dilation = window.dilation[i];
  // Every window begins before the end of x and ends behind its begin.
  if (dilation <= extent || window.kernel[i] == 1) return true;
  for (int64_t p = 0; p < positions; ++p) {
    const int64_t start = p * window.stride[i] - window.padding[i];
    const int64_t first = start >= 0 ? 0 : (-start + dilation - 1) / dilation;
    if (first >= window.kernel[i] || start + first * dilation >= extent) return false;
  }
  return true;
}

void check_max_pool2d(const Tensor& x, const Window& window, bool ceil_mode) {
  constexpr std::string_view op = "max_pool2d";
  check((x.rank() == 4 || x.rank() == 3) && is_floating(x.dtype()), op,
        "expected x [n, c, h, w] or [c, h, w], floating, got ", x);
  check(x.size(-2) > 0 && x.size(-1) > 0, op, "expected images with pixels, got ", x);
  check_window(window, x.size(-2), x.size(-1), op, ceil_mode);
  check_pool_padding(window, op);
  check(window.kernel[0] * window.kernel[1] <= INT32_MAX, op, "kernel ", window.kernel[0], "x",
        window.kernel[1], " has more than 2^31 - 1 elements");
}

Tensor empty_index(const Tensor& y, const Window& window) {
  TensorOptions options = y.options();
  options.dtype = window.kernel[0] * window.kernel[1] <= 256 ? DType::u8 : DType::i32;
  if (!packs_index(window)) return Tensor::empty(y.shape(), options);
  options.format = MemoryFormat::contiguous;
  return Tensor::empty({packed_index_bytes(y.numel())}, options);
}

}  // namespace

Tensor max_pool2d(const Tensor& x_given, const Window& window, bool ceil_mode) {
  check_max_pool2d(x_given, window, ceil_mode);
  if (x_given.rank() == 3) {
    return max_pool2d(x_given.unsqueeze(0), window, ceil_mode).squeeze(0);
  }
  const int64_t p = window.pooled_positions(0, x_given.size(2), ceil_mode);
  const int64_t q = window.pooled_positions(1, x_given.size(3), ceil_mode);
  check(covers_input(window, 0, x_given.size(2), p) && covers_input(window, 1, x_given.size(3), q),
        "max_pool2d", "a window of kernel ", window.kernel[0], "x", window.kernel[1],
        " with dilation ", window.dilation[0], "x", window.dilation[1],
        " covers nothing but the padding of ", x_given);
  const Tensor x = dense_either(x_given);
  const TensorOptions like_x{
      .dtype = x.dtype(), .device = x.device(), .format = format_of(x.raw(), "max_pool2d")};
  Tensor y = Tensor::empty({x.size(0), x.size(1), p, q}, like_x);
  const auto node = make_node<MaxPool2dNode>(x);
  Tensor index;
  if (node != nullptr) {
    index = empty_index(y, window);
  }
  launch(MaxPool2dForward{.x = x.raw(), .y = y.raw(), .index = index.raw(), .window = window});

  if (node != nullptr) {
    node->index = Saved(index);
    node->x_shape = x.shape();
    node->x_options = like_x;
    node->window = window;
    attach(y, node);
  }
  return y;
}

void MaxPool2dNode::backward(const Tensor& dy_given, Gradients& grads) {
  const Tensor dy = dense(dy_given, x_options.format);
  Tensor dx = Tensor::empty(x_shape, x_options);
  launch(MaxPool2dBackward{.dy = dy.raw(),
                           .index = index.get("max_pool2d", "index").raw(),
                           .dx = dx.raw(),
                           .window = window});
  grads.set(0, dx);
}

}  // namespace gradus
