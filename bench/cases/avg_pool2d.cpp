#include "autograd/ops/avg_pool2d.h"

#include "bench/cases/op_case.h"
#include "tests/support/reference_pool.h"

namespace gradus {
namespace {

std::pair<int64_t, int64_t> both(const Pair& pair) { return {pair[0], pair[1]}; }

OpCase named(const std::string& function, const std::string& name, const Shape& x,
             bool channels_last) {
  OpCase result;
  result.function = function;
  result.name = name + (channels_last ? "_nhwc" : "_nchw");
  // Far from 0: counting a window wrongly shows.
  result.inputs = {{.name = "x", .shape = x, .mean = -4, .channels_last = channels_last}};
  return result;
}

OpCase strided(const std::string& name, const Shape& x, const AvgPool2dOptions& options,
               bool channels_last) {
  const ref::AvgPool2dOptions reference{
      .kernel = both(options.kernel_size),
      .stride = both(options.stride.value_or(options.kernel_size)),
      .padding = both(options.padding),
      .ceil_mode = options.ceil_mode,
      .count_include_pad = options.count_include_pad,
      .divisor = options.divisor_override.value_or(0)};
  OpCase result = named("avg_pool2d", name, x, channels_last);
  result.forward = [=](std::span<const Tensor> in) { return avg_pool2d(in[0], options); };
  result.reference = [=](std::span<const ref::Array> in) {
    return ref::avg_pool2d(in[0], reference);
  };
  result.reference_backward = [=](std::span<const ref::Array> in, const ref::Array& dy) {
    return std::vector<ref::Array>{ref::avg_pool2d_backward(in[0].shape, reference, dy)};
  };
  result.reduction = options.kernel_size[0] * options.kernel_size[1];
  result.of_shape = [=](const Shape& shape) {
    return strided(name, shape, options, channels_last);
  };
  return result;
}

OpCase adaptive(const std::string& name, const Shape& x, Pair size, bool channels_last) {
  OpCase result = named("adaptive_avg_pool2d", name, x, channels_last);
  result.forward = [=](std::span<const Tensor> in) { return adaptive_avg_pool2d(in[0], size); };
  result.reference = [=](std::span<const ref::Array> in) {
    return ref::adaptive_avg_pool2d(in[0], both(size));
  };
  result.reference_backward = [](std::span<const ref::Array> in, const ref::Array& dy) {
    return std::vector<ref::Array>{ref::adaptive_avg_pool2d_backward(in[0].shape, dy)};
  };
  result.reduction = x[2] * x[3];
  result.of_shape = [=](const Shape& shape) { return adaptive(name, shape, size, channels_last); };
  return result;
}

}  // namespace

std::vector<OpCase> avg_pool2d_cases() {
  struct Strided {
    std::string name;
    Shape x;
    AvgPool2dOptions options;
    bool benchmark = false;
  };
  const std::vector<Strided> pools{
      {"k2", {2, 3, 6, 8}, {.kernel_size = 2}},
      {"k2_odd", {1, 5, 5, 7}, {.kernel_size = 2}},
      {"k2_odd_ceil", {1, 2, 5, 7}, {.kernel_size = 2, .ceil_mode = true}},
      {"k2_c33", {1, 33, 4, 6}, {.kernel_size = 2}},
      {"k3_s2_p1", {2, 17, 7, 6}, {.kernel_size = 3, .stride = Pair(2), .padding = 1}},
      {"k3_s2_p1_without_pad",
       {2, 3, 7, 6},
       {.kernel_size = 3, .stride = Pair(2), .padding = 1, .count_include_pad = false}},
      {"k3_s2_p1_ceil",
       {1, 3, 6, 8},
       {.kernel_size = 3, .stride = Pair(2), .padding = 1, .ceil_mode = true}},
      {"k3_s2_p1_ceil_without_pad",
       {1, 3, 6, 8},
       {.kernel_size = 3,
        .stride = Pair(2),
        .padding = 1,
        .ceil_mode = true,
        .count_include_pad = false}},
      {"k3_s1_p1", {1, 2, 4, 5}, {.kernel_size = 3, .stride = Pair(1), .padding = 1}},
      {"k3x2_s1x3_p1x0",
       {1, 3, 7, 8},
       {.kernel_size = {3, 2}, .stride = Pair(1, 3), .padding = {1, 0}}},
      {"k2_wide", {2, 8, 5, 32}, {.kernel_size = 2}},
      {"k8x16", {1, 8, 17, 32}, {.kernel_size = {8, 16}}},
      {"k3x2", {1, 5, 7, 16}, {.kernel_size = {3, 2}}},
      {"k3x4", {1, 5, 7, 16}, {.kernel_size = {3, 4}}},
      {"k2x8", {1, 5, 5, 16}, {.kernel_size = {2, 8}}},
      {"k3x5_rest", {1, 16, 7, 24}, {.kernel_size = {3, 5}}},
      {"k3x16_rest", {1, 3, 7, 40}, {.kernel_size = {3, 16}}},
      {"k2_odd_c16", {2, 16, 5, 7}, {.kernel_size = 2}},
      {"k2_s3", {1, 3, 8, 9}, {.kernel_size = 2, .stride = Pair(3)}},
      {"k2_divisor_3", {1, 2, 5, 6}, {.kernel_size = 2, .divisor_override = 3}},
      {"k2_divisor_minus_1", {1, 2, 5, 6}, {.kernel_size = 2, .divisor_override = -1}},
      {"k17x16", {1, 1, 18, 17}, {.kernel_size = {17, 16}, .stride = Pair(1)}},
      {"k2_odd_13", {2, 3, 13, 13}, {.kernel_size = 2}},
      {"k2_odd_width", {1, 5, 6, 67}, {.kernel_size = 2}},
      {"k4x5_image", {2, 3, 4, 5}, {.kernel_size = {4, 5}}},
      {"k4_image_c16", {2, 16, 4, 4}, {.kernel_size = 4}},
      {"k4_image_divisor_5", {2, 8, 4, 4}, {.kernel_size = 4, .divisor_override = 5}},
      {"k5_image_p1", {1, 3, 3, 3}, {.kernel_size = 5, .padding = 1}},
      {"k5_image_p1_without_pad",
       {1, 3, 3, 3},
       {.kernel_size = 5, .padding = 1, .count_include_pad = false}},
      {"k3_s2_image_ceil", {1, 3, 2, 3}, {.kernel_size = 3, .stride = Pair(2), .ceil_mode = true}},
      {"k2_small", {128, 64, 32, 32}, {.kernel_size = 2}, true},
      {"k2_27", {256, 192, 27, 27}, {.kernel_size = 2}, true},
      {"k7_of_7x7", {256, 2048, 7, 7}, {.kernel_size = 7}, true},
      {"k2_large", {256, 128, 56, 56}, {.kernel_size = 2}, true},
  };
  struct Adaptive {
    std::string name;
    Shape x;
    Pair size;
    bool benchmark = false;
  };
  const std::vector<Adaptive> adaptives{
      {"to_1x1", {2, 3, 4, 5}, 1},
      {"to_2x3", {2, 3, 4, 6}, {2, 3}},
      {"to_3x4_uneven", {1, 3, 7, 9}, {3, 4}},
      {"to_2x4_tiles", {1, 8, 6, 32}, {2, 4}},
      {"to_larger", {1, 3, 3, 4}, {5, 7}},
      {"to_itself", {1, 9, 4, 4}, 4},
      {"to_1x3", {1, 5, 6, 7}, {1, 3}},
      {"to_7x7_large", {256, 128, 56, 56}, 7, true},
      {"to_1x1_of_7x7", {256, 2048, 7, 7}, 1, true},
  };
  std::vector<OpCase> cases;
  for (const bool channels_last : {false, true}) {
    for (const Strided& pool : pools) {
      cases.push_back(strided(pool.name, pool.x, pool.options, channels_last));
      cases.back().benchmark = pool.benchmark;
    }
    for (const Adaptive& pool : adaptives) {
      cases.push_back(adaptive(pool.name, pool.x, pool.size, channels_last));
      cases.back().benchmark = pool.benchmark;
    }
  }
  return cases;
}

}  // namespace gradus
