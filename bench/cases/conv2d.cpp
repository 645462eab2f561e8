#include "autograd/ops/conv2d.h"

#include <algorithm>

#include "bench/cases/op_case.h"

namespace gradus {
namespace {

struct Conv {
  std::string name;
  Shape x, w;
  Conv2dOptions options = {};
  bool bias = true;
  bool channels_last = false;
  bool benchmark = false;
};

ref::Conv2dOptions reference_options(const Conv2dOptions& options) {
  return {.stride_h = options.stride[0],
          .stride_w = options.stride[1],
          .padding_h = options.padding[0],
          .padding_w = options.padding[1],
          .dilation_h = options.dilation[0],
          .dilation_w = options.dilation[1],
          .groups = options.groups};
}

// Products behind one y, one dx or one dw, whichever is most.
int64_t longest_sum(const Conv& conv) {
  const Window window{
      {conv.w[2], conv.w[3]}, conv.options.stride, conv.options.padding, conv.options.dilation};
  const int64_t taps = conv.w[2] * conv.w[3];
  const int64_t outputs = conv.w[0] / conv.options.groups;
  const int64_t pixels =
      conv.x[0] * window.positions(0, conv.x[2]) * window.positions(1, conv.x[3]);
  return std::max({conv.w[1] * taps, outputs * taps, pixels});
}

OpCase make_case(const Conv& conv) {
  using Kind = CaseInput::Kind;
  OpCase result;
  result.name = conv.name + (conv.channels_last ? "_nhwc" : "_nchw");
  result.inputs = {{.name = "x", .shape = conv.x, .mean = 0.3, .channels_last = conv.channels_last},
                   {.name = "w", .shape = conv.w, .mean = -0.2}};
  if (conv.bias) {
    result.inputs.push_back({.name = "bias", .shape = {conv.w[0]}, .kind = Kind::parameter});
  }
  const Conv2dOptions options = conv.options;
  result.forward = [options](std::span<const Tensor> in) {
    return conv2d(in[0], in[1], in.size() > 2 ? in[2] : Tensor(), options);
  };
  result.reference = [options](std::span<const ref::Array> in) {
    return ref::conv2d(in[0], in[1], in.size() > 2 ? in[2] : ref::Array{},
                       reference_options(options));
  };
  result.reference_backward = [options](std::span<const ref::Array> in, const ref::Array& dy) {
    const auto grads = ref::conv2d_backward(in[0], in[1], dy, reference_options(options));
    std::vector<ref::Array> list{grads.dx, grads.dw};
    if (in.size() > 2) list.push_back(grads.db);
    return list;
  };
  result.reduction = longest_sum(conv);
  result.benchmark = conv.benchmark;
  result.of_shape = [conv](const Shape& x) {
    Conv other = conv;
    other.x = x;
    other.w[1] = std::max<int64_t>(1, x[1] / conv.options.groups);
    return make_case(other);
  };
  return result;
}

// Kernels, strides, paddings, dilations and groups crossed, then thinned out: h and w always get
// different numbers, so that a swap shows.
std::vector<Conv> crossed() {
  const std::vector<Pair> kernels{{1, 1}, {3, 3}, {5, 5}, {7, 7}, {1, 7}, {2, 3}};
  std::vector<Conv> list;
  int64_t counter = 0;
  for (const Pair& kernel : kernels) {
    for (int64_t stride = 1; stride <= 3; ++stride) {
      for (int64_t padding = 0; padding <= 3; ++padding) {
        for (int64_t groups : {1, 2, 3}) {
          if (++counter % 4 != 0) continue;
          const int64_t turn = counter / 4;
          const Conv2dOptions options{.stride = {stride, 1 + (stride + turn) % 3},
                                      .padding = {padding, (padding + turn) % 4},
                                      .dilation = {1 + turn % 3, 1 + turn / 3 % 2},
                                      .groups = groups};
          const int64_t channels = groups * (1 + turn % 2), outputs = groups * (2 + turn / 2 % 3);
          // Odd, and just large enough for the dilated kernel.
          const int64_t h = (options.dilation[0] * (kernel[0] - 1) + 2) | 1;
          const int64_t w = (options.dilation[1] * (kernel[1] - 1) + 4) | 1;
          list.push_back(
              {.name = concat("k", kernel[0], "x", kernel[1], "_s", stride, "x", options.stride[1],
                              "_p", padding, "x", options.padding[1], "_d", options.dilation[0],
                              "x", options.dilation[1], "_g", groups, "_", counter),
               .x = {1 + turn % 2, channels, h, w},
               .w = {outputs, channels / groups, kernel[0], kernel[1]},
               .options = options,
               .bias = turn % 3 != 0,
               .channels_last = turn % 2 == 0});
        }
      }
    }
  }
  return list;
}

// Channel counts around the vector widths, maps around the register block, and depthwise.
std::vector<Conv> blocked() {
  const Conv2dOptions same{.padding = {1, 1}};
  const Conv2dOptions half{.stride = {2, 2}, .padding = {1, 1}};
  const auto depthwise = [](Conv2dOptions options, int64_t groups) {
    options.groups = groups;
    return options;
  };
  const std::vector<Conv> list{
      {.name = "first_1to32",
       .x = {2, 1, 6, 9},
       .w = {32, 1, 3, 3},
       .options = same,
       .bias = false},
      {.name = "first_3to17", .x = {1, 3, 5, 7}, .w = {17, 3, 3, 3}, .options = half},
      {.name = "c32to32", .x = {2, 32, 5, 9}, .w = {32, 32, 3, 3}, .options = same, .bias = false},
      {.name = "batch17", .x = {17, 2, 12, 15}, .w = {5, 2, 3, 3}, .options = same},
      {.name = "c33to31", .x = {1, 33, 4, 15}, .w = {31, 33, 3, 3}, .options = same},
      {.name = "c8to64", .x = {2, 8, 3, 13}, .w = {64, 8, 3, 3}, .options = same},
      {.name = "c64to8", .x = {1, 64, 3, 5}, .w = {8, 64, 3, 3}, .options = half},
      {.name = "c16to48_1x1", .x = {2, 16, 3, 7}, .w = {48, 16, 1, 1}},
      {.name = "c24to40_g2",
       .x = {1, 24, 5, 6},
       .w = {40, 12, 3, 3},
       .options = depthwise(same, 2)},
      {.name = "depthwise_c5", .x = {2, 5, 5, 7}, .w = {5, 1, 3, 3}, .options = depthwise(same, 5)},
      {.name = "depthwise_c33",
       .x = {1, 33, 5, 7},
       .w = {33, 1, 3, 3},
       .options = depthwise(half, 33)},
      {.name = "depthwise_c6to12",
       .x = {1, 6, 4, 5},
       .w = {12, 1, 3, 2},
       .options = depthwise(same, 6)},
  };
  std::vector<Conv> both = list;
  for (Conv conv : list) {
    conv.channels_last = true;
    both.push_back(conv);
  }
  return both;
}

// The convolutions of small_cnn at batch 128, and some of larger nets.
std::vector<Conv> benchmarks() {
  const Conv2dOptions same{.padding = {1, 1}};
  std::vector<Conv> list;
  for (const bool channels_last : {false, true}) {
    const auto add = [&](const char* name, const Shape& x, const Shape& w,
                         const Conv2dOptions& options) {
      list.push_back({name, x, w, options, false, channels_last, true});
    };
    add("small_cnn_1to32_28", {128, 1, 28, 28}, {32, 1, 3, 3}, same);
    add("small_cnn_32to32_28", {128, 32, 28, 28}, {32, 32, 3, 3}, same);
    add("small_cnn_32to64_14", {128, 32, 14, 14}, {64, 32, 3, 3}, same);
    add("small_cnn_64to64_14", {128, 64, 14, 14}, {64, 64, 3, 3}, same);
    add("c3to64_32", {32, 3, 32, 32}, {64, 3, 3, 3}, same);
    add("c64to64_32", {32, 64, 32, 32}, {64, 64, 3, 3}, same);
    add("c128to128_16", {32, 128, 16, 16}, {128, 128, 3, 3}, same);
    add("c256to512_16_1x1", {32, 256, 16, 16}, {512, 256, 1, 1}, {});
    add("c128to128_32_s2", {32, 128, 32, 32}, {128, 128, 3, 3},
        {.stride = {2, 2}, .padding = {1, 1}});
    add("depthwise128_32", {32, 128, 32, 32}, {128, 1, 3, 3}, {.padding = {1, 1}, .groups = 128});
  }
  return list;
}

}  // namespace

std::vector<OpCase> conv2d_cases() {
  std::vector<OpCase> cases;
  for (const auto& list : {crossed(), blocked(), benchmarks()}) {
    for (const Conv& conv : list) cases.push_back(make_case(conv));
  }
  return cases;
}

}  // namespace gradus
