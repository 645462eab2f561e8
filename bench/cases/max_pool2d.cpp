#include "autograd/ops/max_pool2d.h"

#include "bench/cases/op_case.h"

namespace gradus {
namespace {

struct Pool {
  std::string name;
  Shape x;
  Window window;
  bool ceil_mode = false;
  bool benchmark = false;
};

OpCase make_case(const Pool& pool, bool channels_last) {
  const Window window = pool.window;
  const bool ceil_mode = pool.ceil_mode;
  const ref::MaxPool2dOptions options{.kernel_h = window.kernel[0],
                                      .kernel_w = window.kernel[1],
                                      .stride_h = window.stride[0],
                                      .stride_w = window.stride[1],
                                      .padding_h = window.padding[0],
                                      .padding_w = window.padding[1],
                                      .dilation_h = window.dilation[0],
                                      .dilation_w = window.dilation[1],
                                      .ceil_mode = ceil_mode};
  OpCase result;
  result.name = pool.name + (channels_last ? "_nhwc" : "_nchw");
  // Far from 0: a padding of zeros would win.
  result.inputs = {{.name = "x", .shape = pool.x, .mean = -4, .channels_last = channels_last}};
  result.forward = [=](std::span<const Tensor> in) { return max_pool2d(in[0], window, ceil_mode); };
  result.reference = [=](std::span<const ref::Array> in) {
    return ref::max_pool2d(in[0], options).y;
  };
  result.reference_backward = [=](std::span<const ref::Array> in, const ref::Array& dy) {
    return std::vector<ref::Array>{ref::max_pool2d_backward(in[0], dy, options)};
  };
  result.reduction = window.kernel[0] * window.kernel[1];
  result.benchmark = pool.benchmark;
  result.of_shape = with_shape(pool, &Pool::x, [channels_last](const Pool& other) {
    return make_case(other, channels_last);
  });
  return result;
}

}  // namespace

std::vector<OpCase> max_pool2d_cases() {
  const std::vector<Pool> pools{
      {"k2_s2", {2, 3, 6, 8}, {{2, 2}, {2, 2}}},
      {"k2_s2_odd", {1, 5, 5, 7}, {{2, 2}, {2, 2}}},
      {"k2_s2_odd_ceil", {1, 2, 5, 7}, {{2, 2}, {2, 2}}, true},
      {"k2_s2_c33", {1, 33, 4, 6}, {{2, 2}, {2, 2}}},
      {"k2_s2_wide", {1, 1, 4, 70}, {{2, 2}, {2, 2}}},
      {"k2_s2_odd_height", {2, 3, 5, 16}, {{2, 2}, {2, 2}}},
      {"k2_s2_odd_height_ceil", {1, 8, 5, 16}, {{2, 2}, {2, 2}}, true},
      {"k2_s2_odd_width", {1, 4, 4, 133}, {{2, 2}, {2, 2}}},
      {"k2_s2_odd_width_ceil", {1, 4, 4, 133}, {{2, 2}, {2, 2}}, true},
      {"k2_s2_7x7_c24", {3, 24, 7, 7}, {{2, 2}, {2, 2}}},
      {"k2_s2_many_rows", {1, 5, 68, 16}, {{2, 2}, {2, 2}}},
      {"k3_s2_p1", {2, 17, 7, 6}, {{3, 3}, {2, 2}, {1, 1}}},
      {"k3_s2_p1_wide", {2, 3, 7, 32}, {{3, 3}, {2, 2}, {1, 1}}},
      {"k3_s2_p1_even", {1, 5, 8, 16}, {{3, 3}, {2, 2}, {1, 1}}},
      {"k3_s2_p1_c16", {2, 16, 7, 6}, {{3, 3}, {2, 2}, {1, 1}}},
      {"k3_s2_p1_c8_ceil", {1, 8, 6, 9}, {{3, 3}, {2, 2}, {1, 1}}, true},
      {"k3_s2_p1_ceil", {1, 2, 6, 16}, {{3, 3}, {2, 2}, {1, 1}}, true},
      {"k3_s2_p1_odd_width", {2, 3, 8, 35}, {{3, 3}, {2, 2}, {1, 1}}},
      {"k3_s2", {2, 5, 13, 13}, {{3, 3}, {2, 2}}},
      {"k3_s2_c16", {1, 16, 8, 9}, {{3, 3}, {2, 2}}},
      {"k3_s2_ceil", {2, 8, 6, 16}, {{3, 3}, {2, 2}}, true},
      {"k3_s2_wide_ceil", {1, 3, 7, 32}, {{3, 3}, {2, 2}}, true},
      {"k3_s2_even_width", {1, 8, 9, 70}, {{3, 3}, {2, 2}}},
      {"k3_s2_2x2_ceil", {2, 8, 2, 2}, {{3, 3}, {2, 2}}, true},
      {"k3_s1_p1", {1, 2, 4, 5}, {{3, 3}, {1, 1}, {1, 1}}},
      {"k2_s1", {3, 2, 4, 5}, {{2, 2}, {1, 1}}},
      {"k3x2_s1x3_p1x0_d2x1", {1, 3, 7, 8}, {{3, 2}, {1, 3}, {1, 0}, {2, 1}}},
      {"k2x3_s3x2_p0x1_d1x2_ceil", {2, 2, 8, 9}, {{2, 3}, {3, 2}, {0, 1}, {1, 2}}, true},
      {"k1_s2", {1, 3, 5, 5}, {{1, 1}, {2, 2}}},
      {"k17x16", {1, 1, 18, 17}, {{17, 16}, {1, 1}}},
      {"small_cnn_28", {128, 32, 28, 28}, {{2, 2}, {2, 2}}, false, true},
      {"small_cnn_14", {128, 64, 14, 14}, {{2, 2}, {2, 2}}, false, true},
      {"k2_small", {128, 64, 32, 32}, {{2, 2}, {2, 2}}, false, true},
      {"k2_large", {256, 128, 56, 56}, {{2, 2}, {2, 2}}, false, true},
      {"k2_27", {256, 192, 27, 27}, {{2, 2}, {2, 2}}, false, true},
      {"k3_s2_55", {256, 64, 55, 55}, {{3, 3}, {2, 2}}, false, true},
      {"k3_s2_13", {256, 256, 13, 13}, {{3, 3}, {2, 2}}, false, true},
      {"k3_s2_112_ceil", {64, 64, 112, 112}, {{3, 3}, {2, 2}}, true, true},
      {"k3_s2_p1_large", {256, 128, 56, 56}, {{3, 3}, {2, 2}, {1, 1}}, false, true},
      {"k3_s2_p1_112", {8, 64, 112, 112}, {{3, 3}, {2, 2}, {1, 1}}, false, true},
  };
  std::vector<OpCase> cases;
  for (const Pool& pool : pools) {
    for (const bool channels_last : {false, true}) cases.push_back(make_case(pool, channels_last));
  }
  return cases;
}

}  // namespace gradus
