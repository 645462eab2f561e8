#include "core/ops/conv2d.h"
#include "core/ops/sum.h"

#include "cpu/conv2d_sum.h"
#include "cpu/conv2d_weight.h"
#include "cpu/dispatch.h"

namespace gradus::GRADUS_ISA {
namespace {

// Every lane of every group starts from its bias, or from 0.
template <class A>
void fill_init(A* init, int64_t groups, int64_t lanes, const A* bias) {
  const int64_t padded = padded_lanes<A>(lanes);
  std::fill(init, init + groups * padded, A(0));
  if (bias == nullptr) return;
  for (int64_t group = 0; group < groups; ++group)
    std::copy(bias + group * lanes, bias + (group + 1) * lanes, init + group * padded);
}

// The groups that the kernels see: those of the convolution, or parts of a depthwise one's
// channels.
struct Groups {
  bool depthwise;
  int64_t count;
  int64_t inputs, outputs;  // channels per group

  Groups(int64_t c, int64_t k, int64_t groups)
      : depthwise(groups > 1 && c == groups && k == groups),
        count(depthwise ? depthwise_parts(c) : groups),
        inputs(c / count),
        outputs(k / count) {}
};

template <class T>
void forward(Cpu& cpu, const Conv2dForward& args) {
  using A = acc_t<T>;
  const Shape &x = args.x.shape, &w = args.w.shape, &y = args.y.shape;
  const Groups groups(x[1], w[0], args.groups);
  WindowedSum<T> sum{.images = x[0],
                     .groups = groups.count,
                     .depth = w[1],
                     .lanes = groups.outputs,
                     .depthwise = groups.depthwise,
                     .h = forward_axis(args.window, 0, x[2], y[2]),
                     .w = forward_axis(args.window, 1, x[3], y[3]),
                     .in = args.x,
                     .out = args.y,
                     .format = format_of(args.x, Conv2dForward::name)};
  const Workspace<A> weights(cpu, sum.groups * sum.packed_size());
  const Workspace<A> init(cpu, sum.groups * padded_lanes<A>(sum.lanes));
  fill_init(init.data(), sum.groups, sum.lanes, args.bias.as<A>());
  const int64_t filter = w[1] * w[2] * w[3], taps = w[2] * w[3];
  sum.pack(cpu, {args.w.as<T>(), sum.lanes * filter, filter, taps, w[3], 1}, weights.data());
  sum.weights = weights.data();
  sum.init = init.data();
  sum.run(cpu);
}

// dx is a windowed sum over dy with the roles of lanes and depth exchanged; a stride leaves each
// phase of dx its own taps.
template <class T>
void backward_input(Cpu& cpu, const Conv2dBackwardInput& args) {
  using A = acc_t<T>;
  const Shape &dx = args.dx.shape, &w = args.w.shape, &dy = args.dy.shape;
  const Groups groups(dx[1], dy[1], args.groups);
  WindowedSum<T> sum{.images = dx[0],
                     .groups = groups.count,
                     .depth = groups.depthwise ? 1 : groups.outputs,
                     .lanes = groups.inputs,
                     .depthwise = groups.depthwise,
                     .h = {},
                     .w = {},
                     .in = args.dy,
                     .out = args.dx,
                     .format = format_of(args.dx, Conv2dBackwardInput::name)};
  const int64_t padded = padded_lanes<A>(sum.lanes);
  const int64_t filter = w[1] * w[2] * w[3], taps = w[2] * w[3];
  const Workspace<A> weights(cpu, sum.groups * taps * sum.depth * padded);
  const Workspace<A> init(cpu, sum.groups * padded);
  fill_init<A>(init.data(), sum.groups, sum.lanes, nullptr);
  sum.weights = weights.data();
  sum.init = init.data();
  for (int64_t i = 0; i < std::min(args.window.stride[0], dx[2]); ++i) {
    for (int64_t j = 0; j < std::min(args.window.stride[1], dx[3]); ++j) {
      sum.h = gradient_axis(args.window, 0, i, dx[2], dy[2]);
      sum.w = gradient_axis(args.window, 1, j, dx[3], dy[3]);
      sum.pack(cpu, {args.w.as<T>(), groups.outputs * filter, taps, filter, w[3], 1},
               weights.data());
      sum.run(cpu);
    }
  }
}

template <class T>
void backward_weight(Cpu& cpu, const Conv2dBackwardWeight& args) {
  using A = acc_t<T>;
  const Shape &x = args.x.shape, &dy = args.dy.shape;
  const Groups groups(x[1], dy[1], args.groups);
  const WeightGradient<T> gradient{.images = x[0],
                                   .groups = groups.count,
                                   .h = forward_axis(args.window, 0, x[2], dy[2]),
                                   .w = forward_axis(args.window, 1, x[3], dy[3]),
                                   .x = args.x,
                                   .dy = args.dy,
                                   .format = format_of(args.x, Conv2dBackwardWeight::name),
                                   .depth = x[1] / args.groups,
                                   .lanes = groups.outputs,
                                   .depthwise = groups.depthwise};
  if (args.dw.dtype == args.x.dtype)
    gradient.run(cpu, args.dw.as<T>());
  else
    gradient.run(cpu, args.dw.as<A>());
}

void bias_gradient(Cpu& cpu, const AnyView& dy, AnyView dbias) {
  dbias.shape = {1, dy.shape[1], 1, 1};
  dbias.strides = strides_of(dbias.shape);
  gradus::run(cpu, Sum{.x = dy, .y = dbias});
}

}  // namespace

void run(Cpu& cpu, const Conv2dForward& args) {
  if (args.y.numel() == 0) return;
  visit(Floating{}, args.dtype(),
        [&](auto type) { forward<typename decltype(type)::type>(cpu, args); });
}

void run(Cpu& cpu, const Conv2dBackwardInput& args) {
  if (args.dx.numel() == 0) return;
  visit(Floating{}, args.dtype(),
        [&](auto type) { backward_input<typename decltype(type)::type>(cpu, args); });
}

void run(Cpu& cpu, const Conv2dBackwardWeight& args) {
  if (args.dw && args.dw.numel() > 0) {
    visit(Floating{}, args.dtype(),
          [&](auto type) { backward_weight<typename decltype(type)::type>(cpu, args); });
  }
  if (args.dbias) bias_gradient(cpu, args.dy, args.dbias);
}

}  // namespace gradus::GRADUS_ISA

GRADUS_DISPATCH(Conv2dForward)
GRADUS_DISPATCH(Conv2dBackwardInput)
GRADUS_DISPATCH(Conv2dBackwardWeight)
