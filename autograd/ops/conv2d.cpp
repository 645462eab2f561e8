#include "autograd/ops/conv2d.h"

#include "autograd/autocast.h"
#include "autograd/tape.h"
#include "core/launch.h"
#include "core/ops/conv2d.h"

namespace gradus {
namespace {

struct Conv2dNode final : Node {
  Saved x;  // as the kernel read it: dense, in half under autocast; only for dw and dbias
  Saved w;  // the same; only for dx
  Shape x_shape;
  TensorOptions x_options;
  Shape w_shape;
  DType w_dtype = DType::f32;  // of the parameter, and so of its gradient
  Window window;
  int64_t groups = 1;
  bool tf32 = false;

  std::string_view name() const override { return "conv2d"; }
  void backward(const Tensor& dy, Gradients& grads) override;
};

// The tensors as the caller gave them, before any cast or copy.
void check_conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, int64_t groups) {
  constexpr std::string_view op = "conv2d";
  check(x.rank() == 4 && is_floating(x.dtype()), op, "expected x [n, c, h, w], floating, got ", x);
  check(w.rank() == 4 && is_floating(w.dtype()), op,
        "expected w [k, c/groups, r, s], floating, got ", w);
  check(autocast_dtype(w.dtype()) == autocast_dtype(x.dtype()), op,
        "x and w must have one dtype, got ", x, " and ", w);
  check(groups > 0, op, "groups must be positive, got ", groups);
  check(x.size(1) % groups == 0 && w.size(0) % groups == 0, op, "groups ", groups,
        " must divide the channels of x and of y, got x ", x, " and w ", w);
  check(x.size(1) / groups == w.size(1), op, "x ", x, " has ", x.size(1) / groups,
        " channels per group of ", groups, ", but w ", w, " reads ", w.size(1));
  check(w.device() == x.device(), op, "all tensors must be on one device, got x ", x, " and w ", w);
  if (!bias.defined()) return;
  const DType acc = acc_dtype(x.dtype());
  check(bias.shape() == Shape{w.size(0)} && bias.dtype() == acc, op, "expected bias ", acc,
        Shape{w.size(0)}, ", got ", bias);
  check(bias.device() == x.device(), op, "all tensors must be on one device, got x ", x,
        " and bias ", bias);
}

}  // namespace

Tensor conv2d(const Tensor& x_given, const Tensor& w_given, const Tensor& bias_given,
              const Conv2dOptions& options) {
  check_conv2d(x_given, w_given, bias_given, options.groups);
  const Window window{
      {w_given.size(2), w_given.size(3)}, options.stride, options.padding, options.dilation};
  check_window(window, x_given.size(2), x_given.size(3), "conv2d");

  const Tensor x = dense_either(autocast_operand(x_given));
  // The node's input is the parameter itself, so that dw is made in its dtype without a copy back.
  const Tensor parameter = w_given.is_contiguous() ? w_given : w_given.contiguous();
  const Tensor w = autocast_operand(parameter.detach());
  const Tensor bias =
      !bias_given.defined() || bias_given.is_contiguous() ? bias_given : bias_given.contiguous();
  const TensorOptions like_x{
      .dtype = x.dtype(), .device = x.device(), .format = format_of(x.raw(), "conv2d")};
  const bool tf32 = matmul_precision() == MatmulPrecision::tf32;
  Tensor y = Tensor::empty(
      {x.size(0), w.size(0), window.positions(0, x.size(2)), window.positions(1, x.size(3))},
      like_x);
  launch(Conv2dForward{.x = x.raw(),
                       .w = w.raw(),
                       .bias = bias.raw(),
                       .y = y.raw(),
                       .window = window,
                       .groups = options.groups,
                       .tf32 = tf32});

  if (auto node = make_node<Conv2dNode>(x, parameter, bias)) {
    const bool trains = parameter.requires_grad() || (bias.defined() && bias.requires_grad());
    if (trains) node->x = Saved(x);
    if (x.requires_grad()) node->w = Saved(w);
    node->x_shape = x.shape();
    node->x_options = like_x;
    node->w_shape = w.shape();
    node->w_dtype = parameter.dtype();
    node->window = window;
    node->groups = options.groups;
    node->tf32 = tf32;
    attach(y, std::move(node));
  }
  return y;
}

void Conv2dNode::backward(const Tensor& dy_given, Gradients& grads) {
  const Tensor dy = dense(dy_given, x_options.format);
  if (grads.wanted(0)) {
    Tensor dx = Tensor::empty(x_shape, x_options);
    launch(Conv2dBackwardInput{.dy = dy.raw(),
                               .w = w.get("conv2d", "w").raw(),
                               .dx = dx.raw(),
                               .window = window,
                               .groups = groups,
                               .tf32 = tf32});
    grads.set(0, dx);
  }
  if (grads.wanted(1) || grads.wanted(2)) {
    const DType acc = acc_dtype(x_options.dtype);
    Tensor dw, dbias;
    if (grads.wanted(1)) dw = Tensor::empty(w_shape, {.dtype = w_dtype, .device = dy.device()});
    if (grads.wanted(2)) dbias = Tensor::empty({w_shape[0]}, {.dtype = acc, .device = dy.device()});
    launch(Conv2dBackwardWeight{.x = x.get("conv2d", "x").raw(),
                                .dy = dy.raw(),
                                .dw = dw.raw(),
                                .dbias = dbias.raw(),
                                .window = window,
                                .groups = groups,
                                .tf32 = tf32});
    grads.set(1, dw);
    grads.set(2, dbias);
  }
}

}  // namespace gradus
