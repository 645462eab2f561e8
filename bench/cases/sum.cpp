#include "autograd/ops/sum.h"

#include "bench/cases/op_case.h"

namespace gradus {
namespace {

struct Reduction {
  std::string name;
  Shape x;
  std::vector<int> axes;
  bool keepdim = false;
  bool channels_last = false;
  bool benchmark = false;
};

OpCase make_case(const Reduction& reduction, bool is_mean) {
  const std::vector<int> axes = reduction.axes;
  const bool keepdim = reduction.keepdim;
  const Shape shape = reduction.x;
  OpCase result;
  result.function = is_mean ? "mean" : "sum";
  result.name = result.function + "_" + reduction.name;
  result.inputs = {
      {.name = "x", .shape = shape, .mean = 0.5, .channels_last = reduction.channels_last}};
  result.forward = [=](std::span<const Tensor> in) {
    return is_mean ? mean(in[0], axes, keepdim) : sum(in[0], axes, keepdim);
  };
  result.reference = [=](std::span<const ref::Array> in) {
    return is_mean ? ref::mean(in[0], axes, keepdim) : ref::sum(in[0], axes, keepdim);
  };
  result.reference_backward = [=](std::span<const ref::Array>, const ref::Array& dy) {
    return std::vector<ref::Array>{is_mean ? ref::mean_backward(shape, dy, axes)
                                           : ref::sum_backward(shape, dy, axes)};
  };
  int64_t count = axes.empty() ? shape.numel() : 1;
  for (const int axis : axes) count *= shape[axis < 0 ? axis + shape.rank() : axis];
  result.reduction = count;
  result.scale = is_mean ? 0 : 4;
  result.benchmark = reduction.benchmark;
  result.of_shape = with_shape(reduction, &Reduction::x, [is_mean](const Reduction& other) {
    return make_case(other, is_mean);
  });
  result.any_rank = axes.empty() && !reduction.channels_last;
  return result;
}

}  // namespace

std::vector<OpCase> sum_cases() {
  const std::vector<Reduction> reductions{
      {"1", {1}, {}},
      {"37", {37}, {}},
      {"5x7_all", {5, 7}, {}, true},
      {"5x7_rows", {5, 7}, {0}},
      {"5x7_columns", {5, 7}, {1}},
      {"9x64_columns", {9, 64}, {-1}},
      {"64x9_columns", {64, 9}, {1}},
      {"100x48_rows", {100, 48}, {0}},
      {"2x3x4x5_channel", {2, 3, 4, 5}, {0, 2, 3}},
      {"2x3x4x5_channel_nhwc", {2, 3, 4, 5}, {0, 2, 3}, false, true},
      {"2x3x4x5_pixels", {2, 3, 4, 5}, {2, 3}},
      {"2x8x4x5_pixels_nhwc", {2, 8, 4, 5}, {2, 3}, true, true},
      {"2x3x4x8_across", {2, 3, 4, 8}, {1}},
      {"2x3x4x5_ends", {2, 3, 4, 5}, {0, 3}, true},
      {"3x2x4x2x3_alternate", {3, 2, 4, 2, 3}, {0, 2, 4}},
      {"3x5x7x16_alternate", {3, 5, 7, 16}, {0, 2}},
      {"3x5x7x16_other_axes", {3, 5, 7, 16}, {1, 3}},
      {"90x2x30x8_alternate", {90, 2, 30, 8}, {0, 2}},
      {"3x5000", {3, 5000}, {1}},
      {"5000x3", {5000, 3}, {0}},
      {"4x33x1030", {4, 33, 1030}, {0, 2}},
      {"2x1x3x2x2x3_rank6", {2, 1, 3, 2, 2, 3}, {1, 2, 4}},
      {"2x1x3x1x2x2x5_rank7", {2, 1, 3, 1, 2, 2, 5}, {0, 4, 6}, true},
      {"2x1x3x2x2x1x2x3_rank8", {2, 1, 3, 2, 2, 1, 2, 3}, {0, 3, 5, 7}},
      {"65x67x7x7_pixels", {65, 67, 7, 7}, {2, 3}},
      {"65537x1", {65537, 1}, {1}},
      {"100003", {100003}, {}},
      {"rows_large", {32768, 4096}, {1}, false, false, true},
      {"dim1_large", {256, 128, 56, 56}, {1}, false, false, true},
      {"dim23_7x7", {256, 2048, 7, 7}, {2, 3}, false, false, true},
      {"dim023_large", {256, 128, 56, 56}, {0, 2, 3}, false, false, true},
      {"dim02_large", {256, 128, 56, 56}, {0, 2}, false, false, true},
      {"dim13_large", {256, 128, 56, 56}, {1, 3}, false, false, true},
      {"dim023_small", {128, 64, 32, 32}, {0, 2, 3}, false, false, true},
      {"dim023_small_channels_last", {128, 64, 32, 32}, {0, 2, 3}, false, true, true},
  };
  std::vector<OpCase> cases;
  for (const Reduction& reduction : reductions) {
    for (const bool is_mean : {false, true}) cases.push_back(make_case(reduction, is_mean));
  }
  return cases;
}

}  // namespace gradus
